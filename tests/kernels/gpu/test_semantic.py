"""What stands above the text: lane maps give products, layouts meet no bank twice, rings hold."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tracea_graph.kernels.gpu.semantic.bank_conflicts import (
    Access,
    BankConflict,
    matrix_load,
    prove_free,
)
from tracea_graph.kernels.gpu.semantic.fragment_layouts import (
    ATOMS,
    Atom,
    LaneMap,
    MatrixLoad,
    wgmma_accumulator,
)
from tracea_graph.kernels.gpu.semantic.multistage_pipeline import (
    BarrierMode,
    PipelineError,
    Ring,
    prove,
)
from tracea_graph.kernels.gpu.semantic.shared_memory_swizzle import Layout, SwizzleMode

MAPS = {f"{a.name} {part}": getattr(a, part) for a in ATOMS.values() for part in "abd"} | {
    f"wgmma n{n}": wgmma_accumulator(n) for n in (8, 24, 96, 256)
}


@pytest.mark.parametrize("name", MAPS)
def test_a_fragment_holds_every_number_once(name: str) -> None:
    one: LaneMap = MAPS[name]
    numbers = np.arange(one.rows * one.cols).reshape(one.rows, one.cols)
    held = one.split(numbers)
    assert held.shape == (one.lanes, one.count)
    assert sorted(held.ravel()) == list(range(numbers.size))
    assert np.array_equal(one.join(held), numbers)


@pytest.mark.parametrize("name", MAPS)
def test_the_spelled_place_is_the_place(name: str) -> None:
    one: LaneMap = MAPS[name]
    for element in range(min(one.count, 9)):
        texts = one.row("lane", element), one.col("lane", element)
        assert not any(re.search(r"[^lane\d\s()>&*+]", text) for text in texts)
        for lane in range(one.lanes):
            found = tuple(eval(text, {"lane": lane}) for text in texts)
            assert found == one.at(lane, element)


def reached(atom: Atom, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``a · b`` by what PTX says a lane computes: four lanes of a row and of a column exchange
    what they hold, and nothing else is known of the matrices."""
    fa, fb, out = atom.a.split(a), atom.b.split(b), np.zeros((32, 4))
    for lane in range(32):
        for e in range(4):
            row, col = atom.d.at(lane, e)
            left = [(la, i) for la in range(32) for i in range(atom.a.count)
                    if atom.a.at(la, i)[0] == row]  # fmt: skip
            for la, i in left:
                k = atom.a.at(la, i)[1]
                right = [(lb, j) for lb in range(32) for j in range(atom.b.count)
                         if atom.b.at(lb, j) == (k, col)]  # fmt: skip
                (lb, j), = right  # fmt: skip
                out[lane, e] += fa[la, i] * fb[lb, j]
                assert la // 4 == row % 8 and lb // 4 == col  # the quads PTX's figures show
    return atom.d.join(out)


@pytest.mark.parametrize("name", ATOMS)
def test_fragments_multiply(name: str) -> None:
    atom, rng = ATOMS[name], np.random.default_rng(1)
    a, b = rng.standard_normal((atom.m, atom.k)), rng.standard_normal((atom.k, atom.n))
    assert np.allclose(reached(atom, a, b), a @ b, atol=1e-12)


def test_products_chain_without_moving_a_number() -> None:
    """Two accumulators side by side are the left operand of the next product: attention's P."""
    atom = ATOMS["m16n8k16.f16"]
    for lane in range(32):
        pair = [(r, c + 8 * block) for block in (0, 1) for r, c in
                (atom.d.at(lane, e) for e in range(4))]  # fmt: skip
        assert pair == [atom.a.at(lane, e) for e in range(8)]


LOADS = {
    "a": (MatrixLoad(((0, 0), (8, 0), (0, 8), (8, 8))), "a", False, 1),
    "b of [n, k]": (MatrixLoad(((0, 0), (0, 8), (8, 0), (8, 8))), "b", True, 2),
    "b of [k, n]": (MatrixLoad(((0, 0), (8, 0), (0, 8), (8, 8)), transposed=True), "b", False, 2),
}


@pytest.mark.parametrize("name", LOADS)
def test_matrix_loads_give_fragments(name: str) -> None:
    load, operand, turned, blocks = LOADS[name]
    fragment: LaneMap = getattr(ATOMS["m16n8k16.f16"], operand)
    for lane in range(32):
        for e in range(8):
            block, own = divmod(e, 8 // blocks)
            row, col = fragment.at(lane, own)
            col += 8 * block
            assert load.got(lane, e) == ((col, row) if turned else (row, col))
    named = {load.address(lane) for lane in range(32)}
    assert named == {(r + i, c) for r, c in load.blocks for i in range(8)}


# ---- shared memory --------------------------------------------------------------------------

TURNED = [
    (pitch, mode) for mode in SwizzleMode for pitch in (32, 64, 128, 256, 384)
    if mode is SwizzleMode.NONE
    or (pitch == mode.ways * 16 if mode.by_tensor_map else pitch % (mode.ways * 16) == 0
        and (pitch >= 128 or 128 % pitch == 0))
]  # fmt: skip


@pytest.mark.parametrize(("pitch", "mode"), TURNED, ids=lambda v: getattr(v, "name", v))
def test_a_swizzle_moves_runs_within_their_row(pitch: int, mode: SwizzleMode) -> None:
    layout = Layout(pitch, mode)
    text = layout.expression("row", "run")
    for row in range(32):
        places = [layout.offset(row, byte) for byte in range(pitch)]
        assert sorted(places) == list(range(row * pitch, (row + 1) * pitch))
        for run in range(pitch // 16):
            first = places[run * 16]
            assert places[run * 16 : run * 16 + 16] == list(range(first, first + 16))
            assert eval(text, {"row": row, "run": run}) == first


@pytest.mark.parametrize(("pitch", "mode"), TURNED, ids=lambda v: getattr(v, "name", v))
def test_steps_along_and_down_a_tile(pitch: int, mode: SwizzleMode) -> None:
    """What kernels reckon with instead of every place anew."""
    layout = Layout(pitch, mode)
    text = layout.moved("offset", "further")
    for row, run, further in ((r, i, f) for r in range(16) for i in (0, 1) for f in (0, 2, 4)):
        if (further + run + 1) * 16 > pitch or pitch & pitch - 1:
            continue
        values = {"offset": layout.offset(row, run * 16), "further": further}
        assert eval(text, values) == layout.offset(row, (run + further) * 16)
        assert layout.offset(row + 16, run * 16) - values["offset"] == 16 * pitch


@pytest.mark.parametrize("mode", [m for m in SwizzleMode if m.by_tensor_map], ids=lambda m: m.name)
def test_tensor_maps_turn_by_address(mode: SwizzleMode) -> None:
    """CUDA's driver API: bits from 4 on are xored with as many bits from 7 on."""
    layout = Layout(mode.ways * 16, mode)
    for row in range(64):
        for run in range(mode.ways):
            plain = row * layout.pitch + run * 16
            assert layout.offset(row, run * 16) == plain ^ ((plain >> 7 & mode.ways - 1) << 4)


@pytest.mark.parametrize(
    ("pitch", "mode", "why"),
    [
        (48, SwizzleMode.XOR4, "rows of 48 bytes"),
        (96, SwizzleMode.XOR2, "rows of 96 bytes"),
        (256, SwizzleMode.TMA128, "TMA128 must have 128 bytes"),
    ],
)
def test_layouts_that_cannot_be_are_refused(pitch: int, mode: SwizzleMode, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Layout(pitch, mode)


def loads_of(layout: Layout, depth: int) -> list[Access]:
    """All loads of a 16-bit operand: 16 rows by 16 columns from everywhere along k."""
    load = LOADS["a"][0]
    return [
        matrix_load(f"ldmatrix at k = {k}", load, layout, row, k)
        for row in (0, 16) for k in range(0, depth, 16)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("pitch", "mode"),
    [(64, SwizzleMode.XOR4), (128, SwizzleMode.XOR8), (256, SwizzleMode.XOR8),
     (32, SwizzleMode.TMA32), (64, SwizzleMode.TMA64), (128, SwizzleMode.TMA128)],
    ids=lambda v: getattr(v, "name", v),
)  # fmt: skip
def test_turned_tiles_are_free_of_conflicts(pitch: int, mode: SwizzleMode) -> None:
    prove_free(loads_of(Layout(pitch, mode), pitch // 2))


@pytest.mark.parametrize(("pitch", "degree"), [(32, 2), (64, 4), (128, 8), (256, 8)])
def test_plain_tiles_are_refused_with_the_reason(pitch: int, degree: int) -> None:
    with pytest.raises(BankConflict, match=rf"k = 0 takes {degree} turns: lanes 0, .* of bank 0"):
        prove_free(loads_of(Layout(pitch), pitch // 2))


def test_too_few_ways_are_refused() -> None:
    with pytest.raises(BankConflict, match="takes 2 turns"):
        prove_free(loads_of(Layout(128, SwizzleMode.XOR4), 64))


def test_padded_rows_are_free_too() -> None:
    prove_free(loads_of(Layout(144), 64))


@pytest.mark.parametrize(
    ("width", "stride", "degree"),
    [(4, 4, 1), (4, 8, 2), (4, 128, 32), (4, 0, 1), (4, 132, 1), (8, 8, 1), (8, 16, 2),
     (8, 128, 16), (16, 16, 1), (16, 32, 2), (16, 128, 8), (16, 144, 1), (2, 2, 1), (1, 1, 1)],
)  # fmt: skip
def test_strided_accesses(width: int, stride: int, degree: int) -> None:
    """Known figures: a stride of 2 words halves the speed, equal words are shared."""
    worst = Access("load", width, tuple(i * stride for i in range(32))).worst()
    assert (worst.degree if worst else 1) == degree


def test_lanes_that_are_off_wait_for_nobody() -> None:
    some = tuple(None if i % 2 else i * 64 for i in range(32))
    worst = Access("load", 4, some).worst()
    assert worst is not None and worst.degree == 16 and worst.lanes[1] == 2


@pytest.mark.parametrize("addresses", [(2,), (-4,), tuple(range(0, 132, 4))])
def test_accesses_that_cannot_be_are_refused(addresses: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"load|lanes"):
        Access("load", 4, addresses)


# ---- pipelines ------------------------------------------------------------------------------

RINGS = [Ring(1, BarrierMode.NONE), *(Ring(n, BarrierMode.GROUPS) for n in (2, 3, 4, 5))] + [
    Ring(n, BarrierMode.MBARRIER) for n in (1, 2, 3, 4)
]


@pytest.mark.parametrize("ring", RINGS, ids=lambda r: f"{r.mode.value}{r.stages}")
def test_rings_are_safe(ring: Ring) -> None:
    for tiles in (0, 1, 2, ring.stages, ring.stages + 1):
        prove(ring, tiles)


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_a_ring_that_waits_for_too_few_copies_is_refused(stages: int) -> None:
    good = Ring(stages, BarrierMode.GROUPS)
    with pytest.raises(PipelineError, match=r"Tile 0 is read with \d copies in flight"):
        prove(Ring(stages, BarrierMode.GROUPS, pending=good.left + 1))


class Greedy(Ring):
    """Issues one tile more than it has room for."""

    @property
    def prefetched(self) -> int:
        return self.stages


def test_a_ring_that_overwrites_is_refused() -> None:
    with pytest.raises(PipelineError, match="overwrites"):
        prove(Greedy(3, BarrierMode.GROUPS))


class Hasty(Ring):
    """Its producer waits for the other phase."""

    def before_write(self, tile: int):  # type: ignore[no-untyped-def]
        need = super().before_write(tile)
        return type(need)(need.stage, phase=1 - (need.phase or 0))


class Blind(Ring):
    """Its consumer waits for the other phase."""

    def before_read(self, tile: int):  # type: ignore[no-untyped-def]
        need = super().before_read(tile)
        return type(need)(need.stage, phase=1 - (need.phase or 0))


def test_wrong_phases_hang_or_read_too_early() -> None:
    with pytest.raises(PipelineError, match="Deadlock: 0 of"):
        prove(Hasty(2, BarrierMode.MBARRIER))
    with pytest.raises(PipelineError, match="read before its copy is complete"):
        prove(Blind(2, BarrierMode.MBARRIER))


def test_what_is_waited_for_is_said() -> None:
    ring = Ring(3, BarrierMode.GROUPS)
    assert (ring.before_read(4).stage, ring.before_read(4).pending, ring.prefetched) == (1, 1, 2)
    phases = Ring(2, BarrierMode.MBARRIER)
    assert [phases.before_read(i).phase for i in range(5)] == [0, 0, 1, 1, 0]
    assert [phases.before_write(i).phase for i in range(5)] == [1, 1, 0, 0, 1]


@pytest.mark.parametrize(("stages", "mode"), [(0, BarrierMode.NONE), (1, BarrierMode.GROUPS)])
def test_rings_without_room_are_refused(stages: int, mode: BarrierMode) -> None:
    with pytest.raises(ValueError, match="at least"):
        Ring(stages, mode)
