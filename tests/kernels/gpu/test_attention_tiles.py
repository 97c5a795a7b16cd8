"""Attention with active tiles on GPUs: programs in the host dialect, against NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.graphs import Net, normal, only, optimized, reasons
from tests.kernels.gpu.cases import TOLERANCE, close_to, listed_tiles
from tests.kernels.gpu.machine import Array
from tests.kernels.gpu.programs import program_of, run_program
from tracea_graph import passes
from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.gpu.phases import structure_rules
from tracea_graph.kernels.program_writer import LackingError
from tracea_graph.ops.attention import LOWEST, UNLIMITED, AttentionParams
from tracea_graph.ops.attention_tiles import TileGrid
from tracea_graph.passes import PlanRequest
from tracea_graph.rewrite import DecisionTrace
from tracea_graph.ttg import TileGraph

pytestmark = pytest.mark.compiler
GRID = TileGrid(16, 8, 2, 3)
PLAIN = AttentionParams(2, 16, 24, 0.2, layouts=("heads",) * 4, tiles=GRID)
ACTIVE = np.array([0, 1, 5], np.int32)
CASES = {
    "plain": (PLAIN, DType.F16),
    "added mask": (replace(PLAIN, mask="add", causal="top"), DType.F32),
    "boolean mask": (replace(PLAIN, mask="bool", zero_rows="masked"), DType.F32),
    "summary of a mask": (
        replace(PLAIN, mask="add", tiles=replace(GRID, beyond=-1e9)), DType.F32,
    ),
}  # fmt: skip


def arrays_of(params: AttentionParams, queries: int, keys: int) -> list[Array]:
    rng = np.random.default_rng(0)
    sizes = ((queries, params.head), (keys, params.head), (keys, params.head_v))
    arrays: list[Array] = [
        rng.standard_normal((2, params.heads, *size)).astype(np.float32) for size in sizes
    ]
    assert params.tiles is not None
    if params.mask == "bool":
        arrays.append(rng.random((keys,)) < 0.7)
    elif params.tiles.masks and params.mask == "add":
        arrays.append(rng.standard_normal((2, 1, 1, keys)).astype(np.float32))
    elif params.mask == "add":
        kept = params.tiles.kept(ACTIVE, queries, keys)
        arrays.append(np.where(kept, 0, -1e9).astype(np.float32))
    return [*arrays, ACTIVE]


@pytest.mark.parametrize("name", CASES)
def test_tiles_are_a_mask(name: str) -> None:
    params, narrow = CASES[name]
    arrays = arrays_of(params, 31, 22)
    wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in arrays]
    with np.errstate(invalid="ignore"):
        (want,) = params.reference(wide)
    got = run_program(params, arrays, narrow)[0]
    most = max(3 * TOLERANCE[narrow], 3e-6) * np.nanmax(np.abs(want))
    np.testing.assert_allclose(got, want, rtol=0, atol=most)


def test_a_finite_score_in_place_of_masked_ones_is_refused() -> None:
    params = replace(PLAIN, mask="bool", fill=-1e4)
    specs = [TensorSpec(DType.F32, (2, 2, 31, 16)), TensorSpec(DType.F32, (2, 2, 22, 16)),
             TensorSpec(DType.F32, (2, 2, 22, 24)), TensorSpec(DType.BOOL, (31, 22)),
             TensorSpec(DType.I32, (3,))]  # fmt: skip
    with pytest.raises(LackingError, match="only if the mask drops keys by −∞"):
        program_of(params, specs, DType.F32, {})


BANDS = {"almost causal": (1000, 3), "band": (40, 40), "window": (140, 0)}
LISTED = AttentionParams(2, 16, 24, 0.2, layouts=("heads",) * 4, mask="add")


def band(rows: int, keys: int, name: str) -> Array:
    return close_to(np.arange(rows), keys, BANDS[name])


def masked(mask: Array) -> tuple[Net, TileGraph]:
    """Two heads of 16 over as many queries and keys as a constant mask has."""
    net, (rows, keys) = Net(), mask.shape[-2:]
    q, k, v = (net.input(n, 1, 2, s, 16) for n, s in (("q", rows), ("k", keys), ("v", keys)))
    scores = net("Mul", net("MatMul", q, net("Transpose", k, perm=(0, 1, 3, 2))), 0.25)
    if mask.dtype == np.bool_:
        scores = net("Where", net.const(mask, np.bool_), scores, -np.inf)
    else:
        scores = net("Add", scores, net.const(mask))
    return net, net.graph(net("MatMul", net("Softmax", scores, axis=-1), v))


def planned(mask: Array) -> tuple[Net, TileGraph, DecisionTrace]:
    net, graph = masked(mask)
    return (
        net,
        graph,
        optimized(graph, passes.phases(PlanRequest(), structure_rules(PlanRequest()))),
    )


@pytest.mark.parametrize("fill", [-1e4, LOWEST, -np.inf, "bool"])
@pytest.mark.parametrize("name", BANDS)
def test_tiles_with_a_kept_key_are_listed(name: str, fill: float | str) -> None:
    kept = band(400, 390, name)
    mask = kept if fill == "bool" else np.where(kept, 0, fill).astype(np.float32)
    _, graph, trace = planned(mask)
    assert trace.applied()["mask-tiles"] == 1
    region = only(graph, "FusedAttention")
    (before, after), beyond = BANDS[name], -np.inf if fill == "bool" else np.float32(fill)
    ends = (min(before - 10, 389), after + 10)  # of queries that end where keys do
    assert region.params.tiles == TileGrid(128, 128, 4, 4, beyond, True, ends)
    listed = graph.weights[region.operands[-1]].array()
    assert np.array_equal(listed, listed_tiles(mask))


def test_queries_without_a_key_see_all_keys_unless_infinity_drops_them() -> None:
    kept = band(300, 400, "band")
    kept[200] = False
    for low, length in ((-1e9, 4), (-np.inf, 3)):
        _, graph, _ = planned(np.where(kept, 0, low).astype(np.float32))
        starts = graph.weights[only(graph, "FusedAttention").operands[-1]].array()[:4]
        assert starts[2] - starts[1] == length
    kept[:128] = False
    _, graph, _ = planned(kept)
    assert graph.weights[only(graph, "FusedAttention").operands[-1]].array()[4] == 1, "one tile"


def test_masks_that_keep_keys_are_not_listed() -> None:
    kept = band(400, 400, "band")
    _, graph, trace = planned(np.where(kept, 0, -1e3).astype(np.float32))
    assert only(graph, "FusedAttention").params.tiles is None
    (why,) = reasons(trace, "mask-tiles")
    assert "leaves only 0%" in why


@pytest.mark.parametrize("is_band", [False, True])
@pytest.mark.parametrize("name", BANDS)
def test_listed_tiles_are_visited_and_no_others(name: str, is_band: bool) -> None:
    """Keys outside of the listed tiles are NaN, which no weight of 0 would hide."""
    before, after = BANDS[name]
    tiles_band = (before, after) if is_band else None
    kept = close_to(np.arange(300) + 300, 600, (before, after))
    mask = np.where(kept, 0, -1e9).astype(np.float32)
    tiles = listed_tiles(mask)
    grid = TileGrid(128, 128, 3, 5, -1e9, True, tiles_band)
    params = replace(LISTED, tiles=grid)
    arrays = [normal(1, 2, 300, 16), normal(1, 2, 600, 16), normal(1, 2, 600, 24), mask, tiles]
    wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in arrays]
    (want,) = params.reference(wide)
    unseen = ~np.isin(np.arange(600) // 128, tiles[4:] // 2)
    arrays[1][:, :, unseen] = arrays[2][:, :, unseen] = np.nan
    got = run_program(params, arrays, DType.F16)[0]
    most = 3 * TOLERANCE[DType.F16] * np.abs(want).max()
    np.testing.assert_allclose(got, want, rtol=0, atol=most)


@pytest.mark.parametrize(
    ("change", "op"),
    [
        ({}, "attention"),
        ({"zero_rows": "masked"}, "attention"),
        ({"causal": "none", "zero_rows": "infinite"}, "attention"),
        ({"causal": "none", "window": (9, 30)}, "attention"),
        ({"causal": "none", "window": (UNLIMITED, 3)}, "attention"),
        ({"causal": "none", "window": (3, UNLIMITED)}, "attention"),
        ({"global_keys": 2}, "attention"),
        ({"global_keys": 70, "causal": "none"}, "attention"),
        ({"global_keys": 2, "fill": -1e4}, "attention_rows"),
        ({"mask": "add"}, "attention"),
        ({"mask": "add", "global_keys": 3, "causal": "none"}, "attention"),
        ({"mask": "add", "zero_rows": "infinite"}, "attention"),
        ({"mask": "add", "zero_rows": "masked"}, "attention"),
        ({"mask": "bool", "zero_rows": "masked", "fill": LOWEST}, "attention"),
        ({"mask": "bool", "zero_rows": "masked", "fill": -1e4}, "attention"),
    ],
)
def test_windows_take_tensor_cores(change: dict[str, Any], op: str) -> None:
    """Also with a mask or global keys, unless finite scores stand for excluded keys."""
    heads = ("heads",) * 4
    params = AttentionParams(2, 16, 16, 0.25, layouts=heads, causal="bottom", window=(39, 0))
    params = replace(params, **change)
    arrays = [normal(2, 2, 90, 16, seed=i) for i in range(3)]
    if params.mask == "add":
        arrays.append(normal(90, 90))
        arrays[-1][3] = {"infinite": -np.inf, "masked": LOWEST}.get(params.zero_rows, -1.0)
        arrays[-1][50, ::2] = LOWEST
    if params.mask == "bool":
        arrays.append(normal(90, 90) > 0)
        arrays[-1][3] = False
    types = {"float32": DType.F32, "bool": DType.BOOL}
    specs = [TensorSpec(types[str(a.dtype)], a.shape) for a in arrays]
    assert op in {call.op for call in program_of(params, specs, DType.F16).calls}
    wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in arrays]
    with np.errstate(invalid="ignore"):  # −∞ − −∞
        (want,) = params.reference(wide)
    got = run_program(params, arrays, DType.F16)[0]
    most = 3 * TOLERANCE[DType.F16] * np.abs(want).max()
    np.testing.assert_allclose(got, want, rtol=0, atol=most)
