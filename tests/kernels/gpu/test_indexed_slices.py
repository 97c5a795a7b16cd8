"""GatherND and ScatterND as programs of a GPU: in the host dialect, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.gpu.programs import program_of, run_program
from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.program_writer import LackingError
from tracea_graph.ops.indexed_slices import SCATTERS, GatherNDParams, ScatterNDParams

pytestmark = pytest.mark.compiler
INDICES = TensorSpec(DType.I64, ("b", 2, 2))


@pytest.mark.parametrize("items", [0, 1, 2])
def test_slices_of_items(items: int) -> None:
    rng = np.random.default_rng(items)
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32)
    index = rng.integers(-2, 2, (2, 3, 7, 2))
    params = GatherNDParams(items)
    (got,) = run_program(params, [x, index])
    np.testing.assert_array_equal(got, params.reference([x, index])[0])


@pytest.mark.parametrize("reduction", SCATTERS)
def test_updates_of_one_slice_are_combined_in_order(reduction: str) -> None:
    """A sum of numbers of different magnitudes depends on its order."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 4, 5)).astype(np.float32)
    index = rng.integers(-2, 2, (40, 2)).astype(np.int32)
    updates = (rng.standard_normal((40, 5)) * 10.0 ** rng.integers(-3, 4, (40, 1))).astype("f")
    params = ScatterNDParams(reduction)
    (got,) = run_program(params, [x, index, updates])
    np.testing.assert_array_equal(got, params.reference([x, index, updates])[0])


@pytest.mark.parametrize("count", [0, 3])
def test_halves_and_nothing(count: int) -> None:
    x, updates = np.ones((4, 6), np.float32), np.full((count, 6), 3, np.float32)
    index = np.array([[1], [-1], [1]])[:count]
    params = ScatterNDParams("add")
    (got,) = run_program(params, [x, index, updates], DType.F16)
    np.testing.assert_array_equal(got, params.reference([x, index, updates])[0])


def test_sizes_may_be_symbols() -> None:
    sizes = {"n": 4, "b": 5, "d": 6}
    x, updates = TensorSpec(DType.F32, ("n", 3, "d")), TensorSpec(DType.F32, ("b", 2, "d"))
    made = program_of(ScatterNDParams("max"), [x, INDICES, updates], DType.F32, sizes)
    assert [c.op for c in made.calls] == ["elementwise", "update_order", "scatter_nd"]
    (call,) = program_of(GatherNDParams(), [x, INDICES], DType.F32, sizes).calls
    assert call.op == "gather_nd"


def test_other_types_and_longer_tuples_are_refused() -> None:
    x = TensorSpec(DType.U8, (3, 4, 5))
    with pytest.raises(LackingError, match="GatherND need floats, int32 or int64"):
        program_of(GatherNDParams(), [x, INDICES], DType.F32)
    x, index = TensorSpec(DType.F32, (2,) * 7), TensorSpec(DType.I64, (3, 7))
    with pytest.raises(LackingError, match="tuples of up to 6 indices"):
        program_of(GatherNDParams(), [x, index], DType.F32)
