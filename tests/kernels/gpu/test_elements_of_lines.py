"""Gather, CumSum, ScatterElements and GridSample as programs of a GPU, in the host dialect."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import Net, loaded, normal, ops, optimized
from tests.kernels.gpu.programs import program_of, run_program
from tracea_graph import passes
from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.gpu.phases import phases
from tracea_graph.kernels.program_writer import LackingError
from tracea_graph.ops.cumulative_sum import CumulativeSumParams
from tracea_graph.ops.gather import GatherParams
from tracea_graph.ops.grid_sample import GridSampleParams
from tracea_graph.ops.scatter_elements import ScatterElementsParams
from tracea_graph.passes import PlanRequest


@pytest.mark.compiler
@pytest.mark.parametrize("axis", [0, 1, 3])
@pytest.mark.parametrize("shape", [(7,), (2, 3), ()])
def test_slices_along_an_axis(axis: int, shape: tuple[int, ...]) -> None:
    x = normal(3, 4, 2, 5)
    index = np.random.default_rng(0).integers(-3, 3 if axis != 3 else 5, shape)
    params = GatherParams(axis)
    (got,) = run_program(params, [x, np.asarray(index)])
    np.testing.assert_array_equal(got, params.reference([x, index])[0])


@pytest.mark.compiler
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_sums_and_updates_along_an_axis(axis: int) -> None:
    rng = np.random.default_rng(axis)
    x = rng.integers(-9, 9, (3, 4, 5))
    (got,) = run_program(sums := CumulativeSumParams(axis, reverse=True), [x])
    np.testing.assert_array_equal(got, sums.reference([x])[0])
    shape = [*x.shape]
    shape[axis] = 6
    index, more = rng.integers(-3, 3, shape), rng.integers(-9, 9, shape)
    (got,) = run_program(params := ScatterElementsParams(axis, "add"), [x, index, more])
    np.testing.assert_array_equal(got, params.reference([x, index, more])[0])


@pytest.mark.compiler
def test_samples_of_images() -> None:
    x, grid = normal(2, 3, 6, 5), np.clip(normal(2, 4, 7, 2, seed=1), -1, 1)
    params = GridSampleParams()
    (got,) = run_program(params, [x, grid])
    np.testing.assert_allclose(got, params.reference([x, grid])[0], 1e-4, 1e-5)


def test_other_types_and_ranks_are_refused() -> None:
    x, index = TensorSpec(DType.U8, (3, 4)), TensorSpec(DType.I64, (2,))
    with pytest.raises(LackingError, match="Gather need floats, int32 or int64"):
        program_of(GatherParams(0), [x, index], DType.F32)
    x, index = (TensorSpec(t, (2,) * 5) for t in (DType.F32, DType.I64))
    with pytest.raises(LackingError, match="take up to four axes"):
        program_of(ScatterElementsParams(0), [x, index, x], DType.F32)


def left(net: Net, y: str) -> list[str]:
    graph, request = net.graph(y), PlanRequest()
    optimized(graph, (*passes.phases(request), *phases(request, {})))
    return ops(graph)


def test_they_are_steps_of_a_program() -> None:
    net = Net(opset=18)
    x, ids = net("Relu", net.input("x", "n", 6, 20)), net.ids("ids", "n", 6, 3)
    x = net("CumSum", x, net.const(1, np.int64))
    x = net("Gather", x, net.const([2, 0, 5, 1, 4, 3], np.int64), axis=1)
    x = net("ScatterElements", x, ids, net("Relu", net.input("u", "n", 6, 3)), axis=2,
            reduction="max")  # fmt: skip
    image = net("Reshape", net("Exp", x), net.ints(0, 2, 3, 20))
    assert left(net, net("GridSample", image, net.input("g", "n", 4, 4, 2))) == ["FusedRegion"]


def test_indices_of_detections_are_divided_in_the_program() -> None:
    """The class and the box of the best scores, as transformers for detection end."""
    net = Net()
    scores, boxes = net.input("scores", "n", 30, 8), net.input("boxes", "n", 30, 4)
    flat = net("Reshape", net("Sigmoid", scores), net.ints(0, -1))
    _, index = net.many("TopK", 2, flat, net.ints(5), axis=1)
    kinds = net.const([8], np.int64)
    label, box = net("Mod", index, kinds), net("Div", index, kinds)
    place = net("Tile", net("Unsqueeze", box, net.ints(2)), net.ints(1, 1, 4))
    graph = loaded(net, label, net("GatherElements", boxes, place, axis=1))
    request = PlanRequest(whole_models=True)
    optimized(graph, (*passes.phases(request), *phases(request, {})))
    assert ops(graph) == ["FusedRegion"]


def test_sizes_stay_where_they_are_computed() -> None:
    net = Net()
    y = net("Gather", net("Shape", net.input("x", "n", 6)), net.ids("i", 1))
    assert "Gather" in left(net, y)
