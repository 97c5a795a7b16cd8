"""Inner loops of matrix product and convolution: multiply-adds, loads, nothing else; and what a
compiler may drop because no result depends on it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kernels.assembly import count, inner_loop, instructions, loops, spills
from tests.kernels.conformance import HEADERS
from tracea_graph.kernels.cpu.isa_levels import COMMON_FLAGS, isa_of
from tracea_graph.kernels.cpu.variants import conv_tile, gemm_int8_tile, gemm_tile

pytestmark = pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
STEPS = 2  # of k in one turn of the loops
Hot = tuple[str, str, str, str, int]
"""A loop: kernel, level, function, instruction, and how many of it at least."""


@pytest.mark.parametrize("level", ["avx2", "avx512"])
def test_products_keep_their_accumulators_in_registers(level: str) -> None:
    mr, nv = gemm_tile(level)
    vectors = nv * 16 // isa_of(level).width
    loop = inner_loop("gemm", level, f"tile<{mr}, {nv}, false, ", STEPS * mr * vectors)
    assert count("vfmadd", loop) == STEPS * mr * vectors
    assert count(r"vbroadcastss .*\(", loop) == STEPS * mr
    assert count(r"vmovups .*\(.*%[yz]mm\d+$", loop) <= STEPS * vectors
    assert not spills(loop)


def test_products_in_bf16_take_one_instruction_a_pair() -> None:
    mr, nv = gemm_tile("avx512bf16")
    loop = inner_loop(
        "gemm_bf16", "avx512bf16", f"tile<{mr}, {nv}, false, .*Pairs", STEPS * mr * nv, "vdpbf16ps"
    )
    assert count("vdpbf16ps", loop) == STEPS * mr * nv
    assert not spills(loop)


@pytest.mark.parametrize(("level", "product"), [("avx512bf16", "vpdpwssd"), ("avx2", "vpmaddwd")])
def test_products_of_integers_keep_their_sums_in_registers(level: str, product: str) -> None:
    mr, nv = gemm_tile(level)
    sums = mr * nv * 16 // isa_of(level).width
    loop = inner_loop("gemm_int16", level, f"tile_int16<{mr}, {nv}>", sums, product)
    assert count(product, loop) == sums
    assert not spills(loop)


@pytest.mark.parametrize("level", ["avx2", "avx512"])
@pytest.mark.parametrize("fewer", [0, 1])
def test_convolutions_keep_their_accumulators_in_registers(level: str, fewer: int) -> None:
    pixels, nv = conv_tile(level)
    pixels -= fewer
    vectors = nv * 16 // isa_of(level).width
    name = f"tile<.*Plain, {(pixels + 1) // 2}, {pixels // 2}, {nv}, .*NoHalfTile>"
    loop = inner_loop("conv", level, name, STEPS * pixels * vectors)
    assert count("vfmadd", loop) == STEPS * pixels * vectors
    assert count(r"vbroadcastss .*\(", loop) == STEPS * pixels
    assert count(r"vmovups .*\(.*%[yz]mm\d+$", loop) <= STEPS * vectors
    assert not spills(loop)


@pytest.mark.parametrize("fewer", [0, 1])
def test_convolutions_in_bf16_take_one_instruction_a_pair(fewer: int) -> None:
    pixels, nv = conv_tile("avx512bf16")
    pixels -= fewer
    name = f"tile<.*Pairs, {(pixels + 1) // 2}, {pixels // 2}, {nv}, .*NoHalfTile>"
    loop = inner_loop("conv_bf16", "avx512bf16", name, STEPS * pixels * nv, "vdpbf16ps")
    assert count("vdpbf16ps", loop) == STEPS * pixels * nv
    assert not spills(loop)


def test_convolutions_of_one_block_in_bf16_multiply_inputs_where_they_lie() -> None:
    pixels = conv_tile("avx512bf16")[0] // 2
    name = f"tile<.*Pairs, {(pixels + 1) // 2}, {pixels // 2}, 1, .*NoHalfTile>"
    loop = inner_loop("conv_bf16", "avx512bf16", name, STEPS * pixels, "vdpbf16ps")
    assert count(r"vdpbf16ps .*\(.*\{1to16\}", loop) == STEPS * pixels
    assert not count("vbroadcastss", loop) and not spills(loop)


@pytest.mark.parametrize(
    ("kernel", "level", "product"),
    [("conv", "avx512", "vfmadd"), ("conv_bf16", "avx512bf16", "vdpbf16ps")],
)
def test_eight_outputs_of_a_block_cost_half_of_it(kernel: str, level: str, product: str) -> None:
    pixels, nv = conv_tile(level)
    kind = "Pairs" if kernel == "conv_bf16" else "Plain"
    name = f"tile<.*{kind}, {pixels // 2}, {pixels // 2}, {nv - 1}, [^,]*::HalfTile>"
    loop = inner_loop(kernel, level, name, STEPS * pixels * nv, product)
    assert count(rf"{product}.*%zmm\d+$", loop) == STEPS * pixels * (nv - 1)
    assert count(rf"{product}.*%ymm\d+$", loop) == STEPS * pixels
    assert not spills(loop)


@pytest.mark.parametrize(("level", "product"), [("avx512bf16", "vpdpwssd"), ("avx2", "vpmaddwd")])
def test_convolutions_of_integers_keep_their_sums_in_registers(level: str, product: str) -> None:
    pixels, nv = conv_tile(level)
    sums = STEPS * pixels * nv * 16 // isa_of(level).width
    name = f"tile<.*Whole, {pixels // 2}, {pixels // 2}, {nv}, .*NoHalfTile>"
    loop = inner_loop("conv_int16", level, name, sums, product)
    assert count(product, loop) == sums
    assert not spills(loop)


@pytest.mark.parametrize(
    ("kernel", "level", "width"),
    [
        ("depthwise", "avx2", 7), ("depthwise", "avx512", 14),
        pytest.param("depthwise_bf16", "avx2", 7, marks=pytest.mark.slow),
        pytest.param("depthwise_bf16", "avx512", 14, marks=pytest.mark.slow),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("cols", "step"), [(3, 1), (3, 2), (5, 1), (5, 2), (7, 1), (7, 2)])
def test_depthwise_keeps_its_sums_in_registers(
    kernel: str, level: str, width: int, cols: int, step: int
) -> None:
    if (kernel, level) == ("depthwise_bf16", "avx2") and cols > 3:
        width = 4  # pieces of seven outputs have no register left to unpack into
    loop = inner_loop(kernel, level, f":pieces<{width}, {cols}, {step}>", width * cols)
    assert count("vfmadd", loop) == width * cols
    assert not spills(loop)
    if level == "avx512":  # what is loaded serves all multiply-adds that want it
        assert not [line for line in loop if line.startswith("vfmadd") and "(" in line]


@pytest.mark.parametrize(("cols", "step"), [(3, 1), (3, 2), (5, 1), (5, 2), (7, 1), (7, 2)])
def test_pairs_of_columns_are_made_once(cols: int, step: int) -> None:
    """One permutation for each pair that some output wants."""
    taps = [*range(0, cols - 2, 2), cols - 2]
    pairs = {step * output + tap for output in range(14) for tap in taps}
    name, wanted = f":pieces_in_pairs<14, {cols}, {step}>", 14 * len(taps)
    loop = inner_loop("depthwise_bf16", "avx512bf16", name, wanted, "vdpbf16ps")
    assert count("vdpbf16ps", loop) == wanted
    assert count("vpermw", loop) == len(pairs)
    assert not spills(loop)


@pytest.mark.parametrize("function", ["in<2>", "in<4>", "out<2>", "out<4>"])
@pytest.mark.parametrize(
    ("kernel", "level"),
    [("winograd", "avx512"), ("winograd_bf16", "avx512bf16"), ("winograd_int16", "avx512bf16")],
)
def test_tiles_are_transformed_in_registers(kernel: str, level: str, function: str) -> None:
    """Nothing of a tile is on the stack; its constants may be, four, beside what completes tiles
    that are cut off."""
    found = spills([code for _, code in instructions(kernel, level, function)])
    assert len(found) <= (4 if function.startswith("in") else 0)


ATTENTION = [
    ("attention", "avx2", "vfmadd", (6, 1)), ("attention", "avx2", "vfmadd", (4, 1)),
    *(("attention", "avx512", "vfmadd", tile) for tile in ((6, 4), (6, 2), (4, 4))),
    *(("attention_bf16", "avx512bf16", "vdpbf16ps", tile) for tile in ((6, 4), (6, 2), (4, 4))),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "level", "product", "tile"), ATTENTION)
@pytest.mark.parametrize("part", ["score", "accumulate"])
def test_attention_keeps_its_sums_in_registers(
    kernel: str, level: str, product: str, tile: tuple[int, int], part: str
) -> None:
    """Scores, and sums of values."""
    rows, panels = tile
    sums = rows * panels * 16 // isa_of(level).width
    loop = inner_loop(kernel, level, f"{part}<{rows}, {panels}>", sums, product)
    assert count(product, loop) == sums
    assert not spills(loop)


@pytest.mark.parametrize(
    ("kernel", "level"), [("attention", "avx512"), ("attention_bf16", "avx512bf16")]
)
def test_scores_become_weights_in_registers(kernel: str, level: str) -> None:
    """Two vectors of exponentials a turn, one table of roots each."""
    loop = inner_loop(kernel, level, r"::key_block\(", 2, "vpermd")
    assert count("vpermd", loop) == 2
    assert not spills(loop)


@pytest.mark.parametrize("level", ["avx2", "avx512"])
def test_weights_are_asked_for_between_multiplications(level: str) -> None:
    """Lines of the next column and pages of the one after it, around the loop over some steps."""
    mr, nv = gemm_tile(level)
    products = STEPS * mr * nv * 16 // isa_of(level).width
    name = f"tile<{mr}, {nv}, false, "
    asking = [loop for loop in loops("gemm", level, name)
              if count("vfmadd", loop) >= products and count("prefetcht1 ", loop)]  # fmt: skip
    loop = min(asking, key=len)
    assert count("prefetcht1 ", loop) == count("prefetcht0 ", loop) == 1
    assert not count("prefetch", inner_loop("gemm", level, name, products))


def heights(
    kernel: str, level: str, name: str, product: str, tile: tuple[int, int], steps: int = 1
) -> list[Hot]:
    """All register tiles up to this one: a turn of the loop takes `steps` products of each sum."""
    rows, panels = tile
    vectors = 16 // isa_of(level).width
    return [
        (kernel, level, name.format(m, n), product, steps * m * n * vectors)
        for m in range(1, rows + 1) for n in range(1, panels + 1)
    ]  # fmt: skip


def outputs(kernel: str, level: str, step: str, product: str) -> list[Hot]:
    """The same of convolutions, whose outputs are in two runs."""
    pixels, panels = conv_tile(level)
    vectors = 16 // isa_of(level).width
    return [
        (kernel, level, f"tile<.*{step}, {(p + 1) // 2}, {p // 2}, {n}, .*NoHalfTile>", product,
         STEPS * p * n * vectors)
        for p in range(1, pixels + 1) for n in range(1, panels + 1)
    ]  # fmt: skip


def eights(kernel: str, level: str, step: str, product: str) -> list[Hot]:
    pixels, panels = conv_tile(level)
    name = "tile<.*{}, {}, {}, {}, [^,]*::HalfTile>"
    return [
        (kernel, level, name.format(step, (p + 1) // 2, p // 2, panels - 1), product,
         STEPS * p * panels)
        for p in range(1, pixels + 1)
    ]  # fmt: skip


SPILLED = {  # rows and panels: float32 sums beside those of integers, where neither fits alone
    "avx2": [], "avx512": ["<7, 2>"], "avx512bf16": ["<4, 3>", "<6, 2>", "<7, 2>"],
}  # fmt: skip
SPARSE_ROWS = {"avx2": (6, 4, 2, 1), "avx512": (16, 8, 4, 2, 1), "avx512bf16": (16, 8, 4, 2, 1)}
PLAIN_ROWS = {"avx2": (4, 3), "avx512": (8, 3)}
CELLS = [("Lstm", 4, 6, 1), ("Gru", 3, 8, 1), ("Gru", 3, 4, 2), ("GruGates", 2, 8, 1)]

HOT: list[Hot] = [
    *(hot for level in ("avx2", "avx512")
      for hot in heights("gemm", level, "tile<{}, {}, false, ", "vfmadd", gemm_tile(level), 2)),
    *(("gemm", level, f"dot_rows<{rows}>", "vfmadd", rows * 4)
      for level, rows in (("avx2", 2), ("avx512", 4), ("avx512", 2))),
    *(hot for level in ("avx2", "avx512", "avx512bf16", "amxbf16")
      for hot in heights("gemm_bf16", level, "tile<{}, {}, false, .*Mixed", "vfmadd",
                         gemm_tile(level), 2)),
    *heights("gemm_bf16", "avx512bf16", "tile<{}, {}, false, .*Pairs", "vdpbf16ps",
             gemm_tile("avx512bf16"), 2),
    *heights("gemm_bf16x2", "avx512bf16", "tile_split<{}, {}>", "vdpbf16ps",
             gemm_tile("avx512bf16"), 3),
    *(hot for level, product in (("avx2", "vpmaddwd"), ("avx512", "vpmaddwd"),
                                 ("avx512bf16", "vpdpwssd"))
      for hot in (*heights("gemm_int16", level, "tile_int16<{}, {}>", product, gemm_tile(level)),
                  *outputs("conv_int16", level, "Whole", product))
      if not any(name in hot[2] for name in SPILLED[level])),
    *(hot for level, product, times in (("avxvnni", r"\{vex\} vpdpbusd", 1),
                                        ("avx512", "vpmaddwd", 2), ("avx512vnni", "vpdpbusd", 1))
      for hot in heights("gemm_int8", level, "tile_int8<{}, {}>", product,
                         gemm_int8_tile(level), times)),
    *outputs("conv", "avx2", "Plain", "vfmadd"),
    *outputs("conv", "avx512", "Plain", "vfmadd"),
    *outputs("conv_bf16", "avx512bf16", "Plain", "vfmadd"),
    *outputs("conv_bf16", "avx512bf16", "Pairs", "vdpbf16ps"),
    *eights("conv", "avx512", "Plain", "vfmadd"),
    *eights("conv_bf16", "avx512bf16", "Pairs", "vdpbf16ps"),
    *(("conv", "avx512", f"narrow_line<{filters}>", "vfmadd", filters * (22 // filters))
      for filters in range(2, 9)),
    *(("conv", "avx2", f"narrow_line<{filters}>", "vfmadd", 2 * filters * max(1, 10 // filters))
      for filters in (1, 2, 3, 6, 7, 8)),
    *(("conv_plain", level, f"::rows<{m}>", "vfmadd", m * vectors)
      for level, (rows, vectors) in PLAIN_ROWS.items() for m in range(1, rows + 1)),
    *(("gemm_block_sparse", "avx2", f"blocks<{m}, 2>", "vfmadd",
        4 * m) for m in SPARSE_ROWS["avx2"]),
    *(("gemm_block_sparse", "avx512", f"blocks<{m}, 4>", "vfmadd", 4 * m)
      for m in SPARSE_ROWS["avx512"]),
    *(("gemm_block_sparse_bf16", "avx512bf16", f"blocks<{m}, 2>", "vdpbf16ps", 2 * m)
      for m in SPARSE_ROWS["avx512bf16"]),
    *(("gemm_bitmap", level, f"::masked<{m}>", "vfmadd", m * rows * 16 // isa_of(level).width)
      for level, rows in (("avx2", 2), ("avx512", 4)) for m in range(1, rows + 1)),
    *(("recurrent", "avx512", f"own_units<.*{cell}, {m}, {n}>", "vfmadd", m * gates * n)
      for cell, gates, m, n in CELLS),
    *(("recurrent", "avx2", f"own_units<.*{cell}, 2, 1>", "vfmadd", 2 * gates)
      for cell, gates in (("Lstm", 4), ("Gru", 3), ("GruGates", 2))),
]  # fmt: skip


LATER = [
    ("gemm_int8", "avx512"), ("gemm_int8", "avx512vnni"), ("gemm_bf16", "amxbf16"),
    ("gemm_int16", "avx512"), ("conv_int16", "avx512"), ("gemm_bf16", "avx512"),
]  # fmt: skip
"""Compiled for seconds, up to 14, from the text of the other levels."""


@pytest.mark.parametrize(
    ("kernel", "level", "name", "product", "sums"),
    [pytest.param(*hot, marks=[pytest.mark.slow] * (hot[:2] in LATER)) for hot in HOT],
)
def test_hot_loops_keep_their_sums_in_registers(
    kernel: str, level: str, name: str, product: str, sums: int
) -> None:
    """Every height and width of every product; kernels/cpu/README.md names what is left out."""
    assert not spills(inner_loop(kernel, level, name, sums, product))


COLUMN = """#include <stdio.h>
#include "runtime/gemm.h"
using namespace tracea;

static void say(const char* what, const char* first, int count, int step) {
  for (int i = 0; i < count; ++i) printf("%s %td\\n", what, first - (char*)0 + i * step);
}
static void kernel(const tracea_gemm_tile* t) {
  say("line", t->prefetch, t->prefetch_lines, 64), say("page", t->look_up, t->look_up_pages, 4096);
}

int main() {
  TensorView w = {}, result = {};
  result.strides[0] = COLUMNS * 48;
  GemmJob job = {};
  job.kernel = kernel, job.results = &result, job.parts = 1, job.mr = 8, job.nv = 3;
  job.items = 1, job.m = ROWS, job.n = COLUMNS * 48, job.k = DEPTH, job.x_step = 1;
  job.w_row = 16, job.w_column = 1, job.w_panel = 16 * DEPTH;
  job.columns = job.per_group = COLUMNS, job.groups = job.chunks = 1, job.prefetch = 1;
  job.k_block = BLOCK, job.k_blocks = DEPTH / BLOCK, job.caller = pthread_self();
  Item item = {};
  const Part part = {item, 0, ROWS, 0, COLUMNS, nullptr, nullptr, nullptr};
  gemm_column(job, part, 0, 0);
}
"""


@pytest.mark.parametrize(
    ("rows", "block"), [(6, 768), (16, 768), (128, 768), (64, 384), (72, 384), (128, 384)]
)
def test_a_column_asks_for_all_of_the_next_ones(tmp_path: Path, rows: int, block: int) -> None:
    """Every line of column 1 and every page of column 2, once; the first of them lies at 0."""
    depth, columns = 768, 4
    source, program = tmp_path / "column.cpp", tmp_path / "column"
    source.write_text(COLUMN)
    sizes = {"ROWS": rows, "DEPTH": depth, "BLOCK": block, "COLUMNS": columns}
    define = [f"-D{name}={size}" for name, size in sizes.items()]
    command = [
        "g++",
        *COMMON_FLAGS,
        *define,
        f"-I{HEADERS}",
        f"-I{HEADERS.parent}",
        str(source),
        "-o",
        str(program),
    ]
    subprocess.run(command, check=True)
    text = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    asked = [line.split() for line in text.splitlines()]
    panels = [[(3 * column + p) * depth * 64 for p in range(3)] for column in (1, 2)]
    lines = [at + 64 * i for at in panels[0] for i in range(block)]
    pages = [at + 4096 * i for at in panels[1] for i in range(block * 64 // 4096)]
    assert sorted(int(at) for what, at in asked if what == "line") == sorted(lines)
    assert sorted(int(at) for what, at in asked if what == "page") == sorted(pages)
