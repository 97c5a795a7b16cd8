"""Norms of images' channels on GPUs: programs in the host dialect, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.gpu.cases import TOLERANCE
from tests.kernels.gpu.programs import run_program
from tracea_graph.ir import DType
from tracea_graph.ops.channel_norm import ChannelNormParams
from tracea_graph.ops.norm import Norm

pytestmark = pytest.mark.compiler


@pytest.mark.parametrize("narrow", [DType.F32, DType.F16])
@pytest.mark.parametrize("groups", [0, 2, 6])
def test_groups_and_positions(groups: int, narrow: DType) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((2, 6, 3, 5), (6,), (6, 1, 1))]
    params = ChannelNormParams(Norm("layer", 1e-5), groups, 4)
    (want,) = params.reference([a.astype(np.float64) for a in arrays])
    (got,) = run_program(params, arrays, narrow)
    most = max(2 * TOLERANCE[narrow], 3e-6) * np.abs(want).max()
    np.testing.assert_allclose(got, want, rtol=0, atol=most)
