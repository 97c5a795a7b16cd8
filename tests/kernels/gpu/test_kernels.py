"""Every case on this machine: the kernels' own text in the host dialect, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.gpu.all_cases import CASES
from tests.kernels.gpu.cases import RARE, RARE_TILES, Case, check
from tests.kernels.gpu.machine import HERE, Memory, compiled, run_here
from tracea_graph.kernels.gpu.emitter import emit_kernel, launch_of
from tracea_graph.kernels.gpu.families import tensor_core_matmul
from tracea_graph.kernels.gpu.kernel_source import KernelSource
from tracea_graph.kernels.gpu.semantic.bank_conflicts import prove_free
from tracea_graph.kernels.gpu.semantic.epilogue_strips import EpilogueStrip
from tracea_graph.kernels.gpu.semantic.multistage_pipeline import BarrierMode, Ring
from tracea_graph.kernels.gpu.variants import find

pytestmark = pytest.mark.compiler


def cover() -> set[tuple[str, str]]:
    """Cases and tiles of default runs: every case and every tile of a call, but the rare ones.

    Bytes with and without a sign are one type here, and so are both halves: a tile multiplies
    them by the same lines.
    """
    alike = {"i8": "u8", "bf16": "f16"}
    found, tiles = set[tuple[str, str]](), set[tuple[str, str, str]]()
    for case in (case for case in CASES if not case.rare):
        call, _ = case.make(Memory(), np.random.default_rng(0))
        usual = [tile for tile in case.tiles if f"{case.name} {tile}" not in RARE_TILES]
        own = {(call.op, alike.get(call.dtype, call.dtype), tile) for tile in usual}
        new = [tile for _, _, tile in own - tiles] or usual[:1]
        found |= {(case.name, tile) for tile in new}
        tiles |= own
    return found


USUAL = cover()
ALL = [
    pytest.param(
        c, t, id=f"{c.name} {t}", marks=[] if (c.name, t) in USUAL else [pytest.mark.slow]
    )
    for c in CASES for t in c.tiles
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def kernels_compiled_at_once(request: pytest.FixtureRequest) -> None:
    """Compile the kernels of all cases that will run, many at once."""
    asked = (getattr(item, "callspec", None) for item in request.session.items
             if item.path == request.path)  # fmt: skip
    pairs = [(c.params["case"], c.params["tile"]) for c in asked if c and "case" in c.params]
    compiled([source(case, tile) for case, tile in pairs])


def source(case: Case, tile: str) -> KernelSource:
    call, _ = case.make(Memory(), np.random.default_rng(0))
    return emit_kernel(call, find(call, HERE.architecture, tile), HERE)


@pytest.mark.parametrize(("case", "tile"), ALL)
def test_kernels_compute_what_calls_mean(case: Case, tile: str) -> None:
    memory, seed = Memory(), 1  # threads in a new order for every pass
    call, expected = case.make(memory, np.random.default_rng(seed))
    variant = find(call, HERE.architecture, tile)
    run_here(emit_kernel(call, variant, HERE), launch_of(call, variant, HERE), memory, seed)
    check(memory, expected())


@pytest.mark.parametrize("tile", ["64x64x64x3", "128x128x32x4"])
def test_a_ring_that_waits_too_little_shows(tile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the model of a ring refuses, the kernel's text computes wrongly here."""

    def loose(self: tensor_core_matmul.Tile) -> Ring:
        return Ring(self.stages, BarrierMode.GROUPS, pending=self.stages - 1)

    monkeypatch.setattr(tensor_core_matmul.Tile, "ring", property(loose))
    monkeypatch.setattr(tensor_core_matmul, "prove", lambda ring: None)
    tensor_core_matmul._proved.cache_clear()
    case = next(c for c in CASES if c.name == "f16 nk 70 136 200")
    memory = Memory()
    call, expected = case.make(memory, np.random.default_rng(0))
    variant = find(call, HERE.architecture, tile)
    run_here(emit_kernel(call, variant, HERE), launch_of(call, variant, HERE), memory)
    with pytest.raises(AssertionError):
        check(memory, expected())
    tensor_core_matmul._proved.cache_clear()


def test_strips_and_tiles_meet_no_bank_twice() -> None:
    plain = tensor_core_matmul.Tile(64, 64, 128, 32, 32, 2, "nk", 3)
    prove_free(plain.loads())
    for cols, run in ((32, 4), (32, 8), (64, 4), (64, 8)):
        prove_free(EpilogueStrip(cols).accesses(run))
        words = {EpilogueStrip(cols).offset(r, c) for r in range(16) for c in range(cols)}
        assert len(words) == 16 * cols and max(words) < EpilogueStrip(cols).words


def test_rare_cases_are_cases() -> None:
    assert set(RARE) <= {case.name for case in CASES}
    assert set(RARE_TILES) <= {f"{case.name} {tile}" for case in CASES for tile in case.tiles}
