"""Reshapes whose axes split and merge those of their operand: programs in the host dialect."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.gpu.programs import program_of, run_program
from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.program_writer import LackingError
from tracea_graph.ops.chain import FULL, Chain, Step
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.fused_region import RegionParams, RegionStep

pytestmark = pytest.mark.compiler
DOUBLED = Chain((FULL,), (Step("add", (0, 0)),), (1,))
PLAIN = Chain((FULL,), (), (0,))


def reshaped(chain: Chain, *target: int) -> RegionParams:
    """A chain whose result is reshaped, and doubled after that."""
    first = RegionStep(ElementwiseParams(chain, (), target), (0,), 1)
    return RegionParams(1, (first, RegionStep(ElementwiseParams(DOUBLED), (1,), 1)), (2,))


@pytest.mark.parametrize(("chain", "factor"), [(PLAIN, 2), (DOUBLED, 4)])
def test_axes_may_split_and_merge(chain: Chain, factor: int) -> None:
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    (got,) = run_program(reshaped(chain, 3, 8), [x])
    np.testing.assert_array_equal(got, factor * x.reshape(3, 8))


@pytest.mark.parametrize("chain", [PLAIN, DOUBLED])
def test_unproven_sizes_are_refused(chain: Chain) -> None:
    """ONNX Runtime reports another size; a kernel would read beyond the tensor."""
    spec = TensorSpec(DType.F32, ("n", 6))
    with pytest.raises(LackingError, match=r"all elements of \[n, 6\] in \[4, 6\]"):
        program_of(reshaped(chain, 4, 6), [spec], DType.F32, {"n": 4})
