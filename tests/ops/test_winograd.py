"""Winograd's transform of weights, against a plain convolution in fp64."""

from __future__ import annotations

import numpy as np
import pytest

from tracea_graph.kernels.cpu.winograd import transform

# Transforms of inputs and outputs, as in kernels/cpu/micro/winograd.cpp.in.
B = {
    2: [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]],
    4: [
        [4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0], [0, 4, 0, -5, 0, 1],
    ],
}  # fmt: skip
A = {
    2: [[1, 1, 1, 0], [0, 1, -1, -1]],
    4: [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]],
}


@pytest.mark.parametrize("m", [2, 4])
def test_transformed_products_are_a_convolution(m: int) -> None:
    rng = np.random.default_rng(m)
    w, x = rng.standard_normal((5, 19, 3, 3)), rng.standard_normal((19, m + 2, m + 2))
    planes = transform(w, m)
    assert planes.shape == ((m + 2) ** 2, 1, 2, 16, 16)
    assert planes.dtype == np.float32
    b, a = np.array(B[m]), np.array(A[m])
    v = np.zeros((32, (m + 2) ** 2))
    v[:19] = np.einsum("ui,cij,vj->cuv", b, x, b).reshape(19, -1)
    products = np.einsum("pbiko,ikp->bop", planes.astype(np.float64), v.reshape(2, 16, -1))
    tiles = products.reshape(16, m + 2, m + 2)
    y = np.einsum("ui,oij,vj->ouv", a, tiles, a)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
    np.testing.assert_allclose(y[:5], np.einsum("cijuv,ocuv->oij", windows, w), atol=1e-4)
    assert not planes[:, :, :, :, 5:].any()
    assert not planes[:, :, 1, 3:].any()


def test_only_two_tile_sizes_exist() -> None:
    with pytest.raises(KeyError):
        transform(np.zeros((1, 1, 3, 3)), 3)
