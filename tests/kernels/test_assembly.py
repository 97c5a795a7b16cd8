"""Inner loops of matrix product and convolution: multiply-adds, loads, nothing else; and what a
compiler may drop because no result depends on it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kernels.assembly import count, inner_loop, spills
from tests.kernels.conformance import HEADERS
from tracea_graph.kernels.levels import COMMON_FLAGS, isa_of
from tracea_graph.kernels.variants import conv_tile, gemm_tile

pytestmark = pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
STEPS = 2  # of k in one turn of the loops


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
    name = f"tile<.*Plain, {(pixels + 1) // 2}, {pixels // 2}, {nv}, .*NoEight>"
    loop = inner_loop("conv", level, name, STEPS * pixels * vectors)
    assert count("vfmadd", loop) == STEPS * pixels * vectors
    assert count(r"vbroadcastss .*\(", loop) == STEPS * pixels
    assert count(r"vmovups .*\(.*%[yz]mm\d+$", loop) <= STEPS * vectors
    assert not spills(loop)


@pytest.mark.parametrize("fewer", [0, 1])
def test_convolutions_in_bf16_take_one_instruction_a_pair(fewer: int) -> None:
    pixels, nv = conv_tile("avx512bf16")
    pixels -= fewer
    name = f"tile<.*Pairs, {(pixels + 1) // 2}, {pixels // 2}, {nv}, .*NoEight>"
    loop = inner_loop("conv_bf16", "avx512bf16", name, STEPS * pixels * nv, "vdpbf16ps")
    assert count("vdpbf16ps", loop) == STEPS * pixels * nv
    assert not spills(loop)


@pytest.mark.parametrize(
    ("kernel", "level", "product"),
    [("conv", "avx512", "vfmadd"), ("conv_bf16", "avx512bf16", "vdpbf16ps")],
)
def test_eight_outputs_of_a_block_cost_half_of_it(kernel: str, level: str, product: str) -> None:
    pixels, nv = conv_tile(level)
    kind = "Pairs" if kernel == "conv_bf16" else "Plain"
    name = f"tile<.*{kind}, {pixels // 2}, {pixels // 2}, {nv - 1}, [^,]*::Eight>"
    loop = inner_loop(kernel, level, name, STEPS * pixels * nv, product)
    assert count(rf"{product}.*%zmm\d+$", loop) == STEPS * pixels * (nv - 1)
    assert count(rf"{product}.*%ymm\d+$", loop) == STEPS * pixels
    assert not spills(loop)


@pytest.mark.parametrize(("level", "product"), [("avx512bf16", "vpdpwssd"), ("avx2", "vpmaddwd")])
def test_convolutions_of_integers_keep_their_sums_in_registers(level: str, product: str) -> None:
    pixels, nv = conv_tile(level)
    sums = STEPS * pixels * nv * 16 // isa_of(level).width
    name = f"tile<.*Whole, {pixels // 2}, {pixels // 2}, {nv}, .*NoEight>"
    loop = inner_loop("conv_int16", level, name, sums, product)
    assert count(product, loop) == sums
    assert not spills(loop)


@pytest.mark.parametrize(
    ("kernel", "level", "width"),
    [
        ("depthwise", "avx2", 7), ("depthwise", "avx512", 14), ("depthwise_bf16", "avx2", 7),
        ("depthwise_bf16", "avx512", 14),
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


@pytest.mark.parametrize(
    ("kernel", "level"), [("winograd", "avx512"), ("winograd_bf16", "avx512bf16")]
)
def test_results_of_small_tiles_are_transformed_in_registers(kernel: str, level: str) -> None:
    """F(2 x 2); the 6 x 6 vectors of F(4 x 4) are more than there are registers."""
    loop = inner_loop(kernel, level, "out<2>", 12, "vsubps")
    assert not spills(loop)


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


@pytest.mark.parametrize(("rows", "panels"), [(4, 2), (2, 4), (6, 1)])
def test_exponentials_run_beside_the_sums_they_weigh(rows: int, panels: int) -> None:
    """One loop makes a panel of weights of each row and adds sixteen keys' values."""
    loop = inner_loop("attention", "avx512", f"weigh<{rows}, {panels}>", 16 * rows * panels)
    assert count("vpermd", loop) == rows
    assert count("vfmadd", loop) == rows * (16 * panels + 4)
    assert not spills(loop)


@pytest.mark.parametrize("level", ["avx2", "avx512"])
def test_weights_are_asked_for_between_multiplications(level: str) -> None:
    """Lines of the next column and pages of the one after it."""
    mr, nv = gemm_tile(level)
    vectors = nv * 16 // isa_of(level).width
    loop = inner_loop("gemm", level, f"tile<{mr}, {nv}, false, ", STEPS * mr * vectors)
    assert count("prefetcht1 ", loop) == count("prefetcht0 ", loop) == 1


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
  Box w = {}, result = {};
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
    command = ["g++", *COMMON_FLAGS, *define, f"-I{HEADERS}", str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    text = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    asked = [line.split() for line in text.splitlines()]
    panels = [[(3 * column + p) * depth * 64 for p in range(3)] for column in (1, 2)]
    lines = [at + 64 * i for at in panels[0] for i in range(block)]
    pages = [at + 4096 * i for at in panels[1] for i in range(block * 64 // 4096)]
    assert sorted(int(at) for what, at in asked if what == "line") == sorted(lines)
    assert sorted(int(at) for what, at in asked if what == "page") == sorted(pages)
