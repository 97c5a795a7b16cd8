"""What matrices hold is found by probes, and told of those that have it only."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from models.zero_blocks import block_mask
from tests.graphs import normal
from tracea_graph.ir import DType, Weight
from tracea_graph.passes.sparse.zero_structure import (
    DENSE,
    WeightScan,
    may_have_zeros,
    zero_structure,
)

Array = npt.NDArray[Any]


def grouped(n: int, m: int, axis: int, shape: tuple[int, int] = (256, 320)) -> Array:
    """A matrix of which ``n`` of ``m`` neighbours along an axis are not zero."""
    turned = normal(*shape) if axis == 0 else normal(*shape).T.copy()
    parts = turned.reshape(-1, m, turned.shape[1])
    order = np.random.default_rng(0).random(parts.shape).argsort(1)
    parts[order >= n] = 0
    return turned if axis == 0 else turned.T


def test_a_dense_matrix_is_not_read_as_a_whole() -> None:
    assert not may_have_zeros(normal(256, 320))
    one = normal(256, 320)
    one[100, 200] = 0
    assert not may_have_zeros(one)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("n", "m"), [(1, 4), (2, 4), (2, 8)])
def test_patterns(n: int, m: int, axis: int) -> None:
    found = zero_structure(grouped(n, m, axis))
    assert found.pattern == (n, m, axis) and found.zeros == pytest.approx(1 - n / m)


def test_unstructured_zeros_keep_no_pattern() -> None:
    matrix = normal(256, 320) * (np.random.default_rng(0).random((256, 320)) < 0.5)
    found = zero_structure(matrix)
    assert found.pattern is None and found.blocks == 0
    assert found.zeros == pytest.approx(0.5, abs=0.01)


def test_blocks() -> None:
    mask = block_mask((250, 320), 0.75, (16, 16), "random")
    assert zero_structure(normal(250, 320) * mask).blocks == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize("axis", [0, 1])
def test_one_line_of_zeros_is_found(axis: int) -> None:
    matrix = normal(256, 320)
    np.moveaxis(matrix, axis, 0)[77] = 0
    assert may_have_zeros(matrix)
    found = zero_structure(matrix)
    lines = found.columns if axis else found.rows
    assert np.flatnonzero(lines).tolist() == [77]
    assert (found.rows if axis else found.columns).size == 0


def test_a_line_that_is_almost_zero_is_not() -> None:
    matrix = normal(256, 320)
    matrix[77, :300] = 0
    assert zero_structure(matrix) is DENSE


def test_equal_matrices_are_looked_at_once() -> None:
    array, scan, read = grouped(2, 4, 0), WeightScan(), []

    def weight(name: str) -> Weight:
        def load() -> Array:
            read.append(name)
            return array

        return Weight(name, DType.F32, array.shape, load)

    first, second = weight("a"), weight("b")
    assert scan.structure(first) is scan.structure(second)
    before = len(read)
    scan.structure(first)
    assert len(read) == before
