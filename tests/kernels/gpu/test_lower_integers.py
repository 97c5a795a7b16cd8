"""Convolutions of 8-bit integers on GPUs: programs in the host dialect, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.gpu.programs import run_program
from tracea_graph.ir import DType
from tracea_graph.ops.conv_integer import ConvIntegerParams
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.int8_matmul import IntegerOperand
from tracea_graph.ops.weight_layouts import NK

pytestmark = pytest.mark.compiler


def test_signals_are_images_of_one_row() -> None:
    rng = np.random.default_rng(0)
    params = ConvIntegerParams(
        16, 24, ConvWindow((3,), (2,), (1,), (1, 1)), IntegerOperand(DType.I8, -128), layout=NK
    )
    x = rng.integers(-128, 128, (2, 21, 16)).astype(np.int8)
    w = rng.integers(-128, 128, (24, 48)).astype(np.int8)
    (got,), (want,) = run_program(params, [x, w]), params.reference([x, w])
    assert got.shape == (2, 11, 24) and np.array_equal(got, want)
