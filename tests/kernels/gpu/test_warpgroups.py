"""Matmuls of warpgroups: what descriptors address, what is chosen, and machine code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tests.kernels.gpu import integer_cases
from tests.kernels.gpu.cases import attention, check, conv, gemm, layer
from tests.kernels.gpu.machine import HERE, Memory, run_here
from tests.kernels.gpu.test_emitter import NAMED, made
from tracea_graph.errors import GraphError
from tracea_graph.ir import DType, evaluate
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.cubin import opcodes
from tracea_graph.kernels.gpu.dialect import CUDA, Target
from tracea_graph.kernels.gpu.emitter import emit_kernel, launch_of
from tracea_graph.kernels.gpu.families import attention as attention_family
from tracea_graph.kernels.gpu.families import (
    few_key_attention,
    warpgroup_integers,
    warpgroup_matmul,
)
from tracea_graph.kernels.gpu.kernel_selection import (
    FEW_PIXELS,
    FEW_ROWS,
    WARPGROUPS,
    kernels_of,
    launches_for,
    variants_of,
)
from tracea_graph.kernels.gpu.launch import TensorMap
from tracea_graph.kernels.gpu.nvrtc import compile_sources
from tracea_graph.kernels.gpu.semantic.bank_conflicts import prove_free
from tracea_graph.kernels.gpu.semantic.wgmma_descriptors import MatrixOperand, prove_read
from tracea_graph.kernels.gpu.tile_choice import (
    BYTE_TILES,
    CONVOLUTION_TILES,
    SHARED_W,
    SHARED_X,
    WARPGROUP_TILES,
    WarpgroupTile,
    choose_warpgroup_tiles,
)
from tracea_graph.kernels.gpu.variants import find
from tracea_graph.kernels.program import Call, View
from tracea_graph.ops.chain import Chain, Step

HGMMA, HELD_HGMMA, UTMALDG, HMMA = 0x9F0, 0xDF0, 0x5B4, 0x23C
"""Opcodes: product of a warpgroup, one with an operand in registers, copy by a tensor map, product
of a warp.
"""
IGMMA, IMMA = 0x9F1, 0x237
"""Opcodes of products of bytes."""
GELU = Chain(("full",), (Step("gelu", (0,)),), (1,), (DType.F32,), (DType.F16,))
RESIDUAL = Chain(("full", "full"), (Step("add", (0, 1)),), (2,), (DType.F32, DType.F16),
                 (DType.F16,))  # fmt: skip


@pytest.mark.parametrize("by_depth", [True, False])
@pytest.mark.parametrize("extent", [64, 128, 192, 256])
def test_descriptors_read_what_tensor_maps_write(extent: int, by_depth: bool) -> None:
    operand = MatrixOperand(extent, 64, by_depth)
    prove_read(operand, 64 if by_depth else extent)
    places = {operand.written(at, k) for at in range(extent) for k in range(64)}
    assert len(places) == extent * 64 and max(places) < operand.nbytes


@pytest.mark.parametrize("extent", [32, 128, 256])
def test_descriptors_read_floats(extent: int) -> None:
    prove_read(MatrixOperand(extent, 32, True, 4), 64)


@pytest.mark.parametrize("extent", [64, 128, 192, 256])
def test_descriptors_read_bytes(extent: int) -> None:
    operand = MatrixOperand(extent, 128, True, 1)
    prove_read(operand, 32)
    assert {operand.written(at, k) for at in range(extent) for k in range(128)} == set(
        range(operand.nbytes)
    )
    with pytest.raises(ValueError, match="no tile"):
        MatrixOperand(extent, 128, False, 1)


@dataclass(frozen=True)
class Askew(MatrixOperand):
    """Descriptor whose groups of eight rows are half as far apart as they lie."""

    @property
    def bits(self) -> int:
        return super().bits - (64 << 32 - 1)


@pytest.mark.parametrize("by_depth", [True, False])
def test_wrong_descriptors_are_refused(by_depth: bool) -> None:
    with pytest.raises(GraphError, match="is read at"):
        prove_read(Askew(128, 64, by_depth), 64)
    with pytest.raises(ValueError, match="no tile of 96 by 64"):
        MatrixOperand(96, 64, False)


def call_of(m: Any, n: int, k: int, layout: str = "kn", chain: Chain | None = None) -> Call:
    """A product whose rows are ``m``, perhaps a symbol."""
    call, _ = gemm("f16", 1, n, k, layout, chain=chain, pad=0)(Memory(), np.random.default_rng(0))

    def tall(view: View) -> View:
        rows = len(view.dims) - 2
        dims = (m if i == rows and d == 1 else d for i, d in enumerate(view.dims))
        return replace(view, dims=tuple(dims))

    views = (v and tall(v) for v in call.views)
    return replace(call, views=tuple(views))


def tiles(call: Call) -> list[str]:
    return [variant.tile for variant, _ in variants_of(call)]


def test_many_rows_have_a_kernel_of_warpgroups_before_that_for_all_sizes() -> None:
    """Rows known or not; each kernel has its launch, for sizes from some number of rows on."""
    assert tiles(call_of(128, 768, 768)) == ["32x64x64x4"]
    assert tiles(call_of(128, 768, 768, "nk"))[1:] == ["32x64x64x4"]
    assert tiles(call_of(4096, 768, 48)) == ["128x128x32x4"]
    assert tiles(call_of(4096, 2304, 768)) == ["128x192x64x5x2", "128x128x32x4"]
    call = call_of("rows", 2304, 768)
    assert tiles(call)[-1] == "32x64x64x4" and len(tiles(call)) > 1
    pairs = launches_for(call)
    assert [name.split(" ")[0] for name in kernels_of(call)] == [symbol for _, symbol in pairs]

    fitting = [[evaluate(launch.when, {"rows": n}) > 0 for launch, _ in pairs]
               for n in (1, 256, 257, 1 << 17)]  # fmt: skip
    assert fitting[0] == fitting[1] == [False] * (len(pairs) - 1) + [True]
    wide = tiles(call).index("128x128x32x4")  # for GPUs without warpgroups, from 1024 rows on
    assert wide == len(pairs) - 2
    assert fitting[2][wide - 1 :] == [True, False, True] and all(fitting[3])
    assert [launch.persistent == 1 for launch, _ in pairs[:wide]] == [
        "d" not in tile for tile in tiles(call)[:wide]
    ]  # blocks that share the depth of a tile have one each


@pytest.mark.parametrize("rows", [257, 300, 320, 383])
@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize(("columns", "depth"), [(768, 768), (3072, 768), (768, 3072), (64, 64)])
def test_rows_between_few_and_many_use_warpgroups(
    rows: int, layout: str, columns: int, depth: int
) -> None:
    """Rows known or not: from the first count that kernels of few rows leave."""
    known, _ = variants_of(call_of(rows, columns, depth, layout))[0]
    varying = variants_of(call_of("rows", columns, depth, layout))
    chosen = next(v for v, when in varying if evaluate(when, {"rows": rows}) > 0)
    assert {known.template, chosen.template} <= {WARPGROUPS, FEW_ROWS}


def test_rows_beyond_few_take_small_tiles_where_these_have_an_sm_each() -> None:
    """13 × 8 short blocks; 13 × 16 would share multiprocessors, and long ones take too long."""
    assert tiles(call_of(784, 768, 192, "nk"))[0] == "64x96x1"
    assert tiles(call_of(784, 1536, 192, "nk"))[0].startswith("128x")
    assert tiles(call_of(784, 768, 1536, "nk"))[0].startswith("128x")
    one, *more = launches_for(call_of("rows", 768, 192, "nk"))
    assert "few192" in one[1] and not evaluate(one[0].when, {"rows": 784}) > 0 and more


def test_what_tensor_maps_cannot_copy_has_other_kernels() -> None:
    call = call_of(4096, 768, 768)

    def moved(place: int, **changes: Any) -> Call:
        views: list[View | None] = list(call.views)
        own = views[place]
        assert own is not None
        views[place] = replace(own, **changes)
        return replace(call, views=tuple(views))

    assert len(tiles(call)) == 2
    assert len(tiles(moved(0, strides=(1, 4096)))) == 1, "a depth that is not contiguous"
    assert len(tiles(moved(0, strides=(770, 1)))) == 1, "rows 1540 bytes apart"
    assert len(tiles(moved(1, offset=4))) == 1, "a start at 8 bytes"
    assert len(tiles(moved(0, strides=("k", 1)))) == 2, "rows that a run finds to fit"
    assert TensorMap(4096, DType.F16, (8, 2), (16,), (64, 64)).fits
    assert not TensorMap(4104, DType.F16, (8, 2), (16,), (64, 64)).fits
    assert not TensorMap(4096, DType.F16, (8, 0), (16,), (64, 64)).fits


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        ((1, 4096, 4096, 4096), (128, 256, 4, 0, 0)),
        ((1, 8192, 3072, 768), (128, 192, 5, 1, 0)),
        ((1, 4096, 768, 768), (128, 192, 5, 0, 0)),
        ((1, 4096, 2304, 768), (128, 192, 5, 1, 0)),
        ((1, 4096, 1152, 384), (64, 192, 6, 1, 0)),
        ((1, 4000, 1152, 384), (64, 192, 6, 1, 0)),
    ],
)
def test_tiles_are_those_that_were_fastest(
    sizes: tuple[int, int, int, int], tile: WarpgroupTile
) -> None:
    """As timed on an H100 (models/RESULTS.md)."""
    assert choose_warpgroup_tiles(*sizes, WARPGROUP_TILES) == [(tile, 1)]


def test_pairs_of_blocks_share_an_operand_where_that_was_fastest() -> None:
    """Matmuls of bytes share w; the last ones of MiniLM's layers, with a residual, share x."""
    narrow = 1, 4096, 384, 1536
    ((tile, _),) = choose_warpgroup_tiles(*narrow, WARPGROUP_TILES, reads=1)
    assert tile == (64, 192, 6, 1, SHARED_X)
    assert choose_warpgroup_tiles(*narrow, CONVOLUTION_TILES, reads=1)[0][0][4] == 0
    for columns, depth in ((4096, 4096), (3072, 768), (768, 3072)):  # of bytes
        ((tile, _),) = choose_warpgroup_tiles(1, 4096, columns, depth // 2, BYTE_TILES)
        assert tile[1] >= 192 and tile[4] == SHARED_W


@pytest.mark.parametrize(("columns", "depth", "reads", "tile"), [
    (1152, 384, 0, "64x192x128x6x2"), (768, 768, 1, "64x192x128x6x2"),
    (768, 3072, 1, "128x192x128x5x1"), (3072, 768, 0, "128x256x128x4x1"),
])  # fmt: skip
def test_matmuls_of_bytes_take_the_tiles_that_were_fastest(
    columns: int, depth: int, reads: int, tile: str
) -> None:
    """At batch 32; those of other numbers of rows remain modelled."""
    chain = integer_cases.ROUNDED if reads else integer_cases.REQUANTIZED

    def first(rows: int) -> str:
        made = integer_cases.gemm(DType.U8, rows, columns, depth, 3, chain=chain)
        return variants_of(made(Memory(), np.random.default_rng(0))[0])[0][0].tile

    assert first(4096) == tile
    assert first(2048) != tile


def test_long_epilogues_delay_tiles_that_alternate() -> None:
    """A GELU behind a norm, as timed of GPT-2 on an H100; not a GELU alone."""
    up = 1, 4096, 3072, 768
    assert choose_warpgroup_tiles(*up, WARPGROUP_TILES, steps=9) == [((128, 256, 4, 0, 0), 1)]
    assert choose_warpgroup_tiles(*up, WARPGROUP_TILES, steps=5) == [((128, 128, 6, 1, 0), 1)]


def compiled_tiles(*which: int) -> list[tuple[str, str, Chain | None]]:
    found = list[tuple[str, str, Chain | None]]()
    for i in which or range(len(WARPGROUP_TILES)):
        m, n, stages, pingpong, pair = WARPGROUP_TILES[i]
        for layout in ("nk", "kn")[: 1 + (n % 64 == 0)]:
            for chain in (None, GELU, RESIDUAL, layer(DType.F16)):
                found.append((f"{m}x{n}x64x{stages}x{1 + pingpong}{'x' * pair}", layout, chain))
    return found


@pytest.mark.compiler
@pytest.mark.parametrize(
    "which",
    [pytest.param((3,), id="few"), pytest.param((), id="all", marks=pytest.mark.slow)],
)
def test_machine_code_multiplies_by_warpgroups_and_spills_nothing(which: tuple[int, ...]) -> None:
    target, sources = Target(CUDA, ARCHITECTURES["sm_90a"]), []
    for tile, layout, chain in compiled_tiles(*which):
        call = call_of(4096, 768, 768, layout, chain)
        variant = find(call, target.architecture, tile)
        if not warpgroup_matmul.refusal(call, variant):
            sources.append(emit_kernel(call, variant, target))
    assert len(sources) > 5
    for built in compile_sources(sources, ["sm_90a"]):
        found = opcodes(built.data, built.source.symbol)
        assert built.refused is None and "C75" not in built.log, built.log
        assert found[HGMMA] >= 4 and found[UTMALDG] >= 2 and not found[HMMA]
    for name, opcode in (
        ("u8 wgmma shifted", IGMMA), ("i8 wgconv inside", IGMMA), ("wgblocks f16", HGMMA),
        ("wgmma tf32 layer", HGMMA), ("wgmma tf32x3 layer", HELD_HGMMA),
    ):  # fmt: skip
        call, variant, _ = made(NAMED[name], "sm_90a", NAMED[name].tiles[0])
        (built,) = compile_sources([emit_kernel(call, variant, target)], ["sm_90a"])
        found = opcodes(built.data, built.source.symbol)
        assert built.refused is None and "C75" not in built.log, built.log
        assert found[opcode] >= 4 and found[UTMALDG] >= 2
        assert not found[HMMA] and not found[IMMA]
    call, variant, _ = made(NAMED["f16 layer"], "sm_90a")
    (built,) = compile_sources([emit_kernel(call, variant, target)], ["sm_90a"])
    assert opcodes(built.data, built.source.symbol)[HMMA], "the opcode of a product of a warp"


def attend(queries: Any, head: int, keys: int = 300, **more: Any) -> Call:
    made = attention(DType.F16, (2, 2, 5), keys, head, head, **more)
    call, _ = made(Memory(), np.random.default_rng(0))
    views = (v and replace(v, dims=tuple(queries if d == 5 else d for d in v.dims))
             for v in call.views)  # fmt: skip
    return replace(call, views=tuple(views))


def test_many_queries_have_attention_by_warpgroups() -> None:
    """Short heads without masks take three warpgroups where their blocks are done earlier."""
    assert tiles(attend(63, 64)) == ["64x64"]
    assert tiles(attend(64, 64)) == ["128x128x2", "64x64"]
    assert tiles(attend(192, 64)) == ["128x128x2", "64x64"], "a tile for each of a few SMs"
    assert tiles(attend(192 * 66, 64)) == ["192x128x2", "64x64"], "two for each"
    assert tiles(attend(128 * 33, 64)) == ["128x128x2", "64x64"], "one for each, by smaller ones"
    assert tiles(attend(192, 128)) == ["128x128x2", "64x32"]
    assert tiles(attend(192, 64, mask="add")) == ["128x128x2", "64x64"]
    assert tiles(attend("s", 64, order="top")) == ["192x128x2", "128x128x2", "64x64"]
    assert tiles(attend("s", 36)) == ["64x64"], "rows of 72 bytes"
    assert tiles(attend(192, 64, near=(511, 0))) == ["128x128x2", "64x64"], "a short window"
    assert tiles(attend(192, 64, near=(2047, 0))) == ["192x128x2", "64x64"]
    assert tiles(attend(5, 64, 128, mask="add")) == ["64x128x1", "64x64"], "a mask for each query"
    assert tiles(attend("s", 64, 129)) == ["16x256", "64x208x1", "64x64"]
    assert tiles(attend(5, 64, 128, mask="add", flat=True)) == ["16x128", "64x64"]
    assert tiles(attend(64 * 97, 64, 128))[0] == "64x128x1", "blocks for all multiprocessors"
    assert tiles(attend(64 * 97, 64, 197))[0] == "64x208x1", "an image's patches"
    assert tiles(attend(5, 128, 100)) == ["64x32"], "a head of two panels"


@pytest.mark.parametrize("order", ["none", "bottom"])
def test_blocks_take_all_queries_of_a_head_where_there_are_many(
    order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU of one SM there would be three waves of blocks otherwise."""
    monkeypatch.setattr(few_key_attention, "H100_SMS", 1)
    memory = Memory()
    made = attention(DType.F16, (2, 2, 150), 100, 32, 32, mask="add", low=-1e4, flat=True,
                     order=order)  # fmt: skip
    call, expected = made(memory, np.random.default_rng(0))
    variant = find(call, HERE.architecture, "64x128x1")
    launch = launch_of(call, variant, HERE)
    assert launch.blocks({}) == (4, 1, 1)
    run_here(emit_kernel(call, variant, HERE), launch, memory)
    check(memory, expected())


@pytest.mark.parametrize("blocks", [1, 7, 30])
@pytest.mark.parametrize("tile", ["128x128x2", "192x128x2", "64x64"])
def test_blocks_take_all_tiles_of_all_bands_in_turns(
    tile: str, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bands of four heads and of two; blocks have one tile more or less, or none of a band."""
    keys, head = 600, 64
    monkeypatch.setattr(attention_family, "BAND_BYTES", 4 * keys * 2 * 2 * head)
    memory = Memory()
    made = attention(DType.F16, (2, 3, keys), keys, head, head, order="top")
    call, expected = made(memory, np.random.default_rng(0))
    variant = find(call, HERE.architecture, tile)
    launch = launch_of(call, variant, HERE)
    if launch.persistent:
        launch = replace(launch, grid=(blocks, 1, 1))
    run_here(emit_kernel(call, variant, HERE), launch, memory)
    check(memory, expected())


def convolve(pixels: Any, channels: int, filters: int, **more: Any) -> Call:
    made = conv(DType.F16, (5, 16, 16, channels), (filters, 3, 3), pads=(1, 1), **more)
    call, _ = made(Memory(), np.random.default_rng(0))
    views = (v and replace(v, dims=tuple(pixels if d == 5 else d for d in v.dims))
             for v in call.views)  # fmt: skip
    return replace(call, views=tuple(views))


def test_many_pixels_have_convolutions_by_warpgroups() -> None:
    """Copies take up to 64 channels of a pixel, whose rows lie 16 bytes apart."""
    assert tiles(convolve(400, 64, 64)) == ["128x64x64x8x1", "128x128x32x4"]
    assert tiles(convolve(32, 64, 256)) == ["128x128x64x6x1", "128x128x32x4"]
    assert tiles(convolve(400, 72, 64))[-1] == "128x128x32x4"
    assert tiles(convolve(32, 68, 64)) == ["128x128x32x4"], "pixels of 136 bytes"
    assert tiles(convolve(32, 16, 64)) == ["128x128x32x4"], "more zeros than channels"
    assert tiles(convolve(32, 64, 64, strides=(9, 1))) == ["128x128x32x4"]
    assert tiles(convolve("n", 64, 64))[-1] == "64x64x64x3"
    (launch, _), *_ = launches_for(convolve(400, 64, 64))
    window = launch.arguments[0].window
    assert window is not None and window.before == (1, 1) and window.after == (-1, -1)


def test_few_pixels_have_small_tiles_of_convolutions() -> None:
    """An image known or one of several: while all blocks run at once, then as any other."""

    def small(call: Call) -> list[bool]:
        return [variant.template == FEW_PIXELS for variant, _ in variants_of(call)]

    assert small(convolve(1, 64, 64)) == [True, False]
    assert small(convolve(1, 68, 64)) == [False], "pixels of 136 bytes"
    call = convolve("n", 64, 64)
    pairs = launches_for(call)
    assert small(call)[:2] == [True, False]
    fitting = [[evaluate(launch.when, {"n": n}) > 0 for launch, _ in pairs] for n in (1, 64)]
    assert fitting[0][0] and not fitting[1][0] and any(fitting[1][1:-1])


@pytest.mark.compiler
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("flash bool -inf guarded", "flash listed add -inf", "conv groups 3x3"),
                     id="few"),
        pytest.param(tuple(n for n in NAMED if n.startswith(("flash", "conv groups"))), id="all",
                     marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_machine_code_of_attention_and_convolutions(names: tuple[str, ...]) -> None:
    """No registers are kept in local memory."""
    sources = [emit_kernel(*made(NAMED[n], "sm_90a", t)) for n in names for t in NAMED[n].tiles]
    for built in compile_sources(sources, ["sm_90a"]):
        found = opcodes(built.data, built.source.symbol)
        assert found[HGMMA] and found[UTMALDG] >= 2 and not found[HMMA]
        assert built.refused is None and "C75" not in built.log, built.log


def test_tensors_of_an_epilogue_meet_no_bank_twice() -> None:

    for size, wide in ((2, 64), (2, 32), (1, 64), (1, 32)):
        one = warpgroup_matmul.Exchange("y", "f16", "vf", size, wide)
        prove_free(one.accesses())
        places = {one.layout.offset(r, c) for r in range(16) for c in range(wide * size)}
        assert len(places) == 16 * wide * size


@pytest.mark.parametrize(("columns", "depth", "reads"), [(2304, 768, 0), (1152, 384, 0)])
@pytest.mark.parametrize("steps", [0, 5, 10, 20])
def test_sizes_with_a_measured_tile_keep_it_where_rows_vary(
    columns: int, depth: int, reads: int, steps: int
) -> None:
    (measured,) = choose_warpgroup_tiles(32, 128, columns, depth, WARPGROUP_TILES, reads=reads)
    found = choose_warpgroup_tiles(0, 0, columns, depth, WARPGROUP_TILES, steps=steps, reads=reads)
    assert (measured[0], 4096) in found and len(found) <= 6


def test_only_matmuls_of_integers_loop_over_strips() -> None:
    """Convolutions have more tiles for each block, and code in 16 bits is short."""
    found = dict[str, set[int]]()
    for case in integer_cases.CASES:
        for tile in case.tiles:
            call, _ = case.make(Memory(), np.random.default_rng(0))
            if call.op not in ("integer_gemm", "integer_conv") or tile.count("x") < 4:
                continue
            variant = find(call, ARCHITECTURES["sm_90a"], tile)
            made = warpgroup_integers.parameters(call, variant)
            found.setdefault(call.op, set()).add(made["unrolled"])
            if made["unrolled"]:
                assert made["strips"] // made["unrolled"] in (2, 3, 4)
    assert found["integer_conv"] == {0}
    assert max(found["integer_gemm"]) > 1
