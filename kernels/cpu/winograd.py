"""Winograd's transform of 3 x 3 convolution weights, F(m x m, 3 x 3), and back.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", arXiv:1509.09308.  The
matrices belong to the points 0, 1, -1 (m = 2) and 0, 1, -1, 2, -2 (m = 4).  The input and output
transforms in ``kernels/cpu/micro/winograd.cpp.in`` use these points too.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ops.function_body import BodyBuilder

__all__ = ["recover_filters", "recover_filters_to_onnx", "transform", "transform_to_onnx"]

_BLOCK = 16
_G = MappingProxyType(
    {
        2: np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]),
        4: np.array(
            [
                [1 / 4, 0, 0],
                [-1 / 6, -1 / 6, -1 / 6],
                [-1 / 6, 1 / 6, -1 / 6],
                [1 / 24, 1 / 12, 1 / 6],
                [1 / 24, -1 / 12, 1 / 6],
                [0, 0, 1],
            ]
        ),
    }
)
_BACK = MappingProxyType(
    {
        2: np.array([[1, 0, 0, 0], [0, 1, -1, 0], [0, 0, 0, 1]], np.float32),
        4: np.array([[4, 0, 0, 0, 0, 0], [0, -3, 3, 0, 0, 0], [0, 0, 0, 0, 0, 1]], np.float32),
    }
)
"""``back · transform · back'`` recovers the 3 x 3 kernel."""


def transform(weight: npt.NDArray[Any], m: int) -> npt.NDArray[np.float32]:
    """Transform ``weight[O,I,3,3]`` into ``[(m+2)^2, Ob, Ib, 16 (in), 16 (out)]``, zero-padded.

    Computed in fp64 and rounded once.  Raises KeyError unless ``m`` is 2 or 4.
    """
    g = _G[m]
    outputs, inputs = weight.shape[:2]
    blocks = [-(-channels // _BLOCK) for channels in (outputs, inputs)]
    planes = np.einsum("ua,oiab,vb->uvoi", g, weight.astype(np.float64), g, optimize=True)
    padded = np.zeros(((m + 2) ** 2, blocks[0] * _BLOCK, blocks[1] * _BLOCK), np.float32)
    padded[:, :outputs, :inputs] = planes.reshape(-1, outputs, inputs)
    shape = (-1, blocks[0], _BLOCK, blocks[1], _BLOCK)
    return np.ascontiguousarray(padded.reshape(shape).transpose(0, 1, 3, 4, 2))


def transform_to_onnx(b: BodyBuilder, w: str, m: int, outputs: int, inputs: int) -> str:
    """Emit nodes that compute :func:`transform` for blocked weights ``[Ob,Ib,3,3,16,16]``.

    A single matrix product computes all planes: ``vec(g w g') = (g ⊗ g) vec(w)``.  It is in
    float32, because fp64 would double the memory that creating a session takes.
    """
    blocks = [-(-channels // _BLOCK) for channels in (outputs, inputs)]
    taps = b("Reshape", b("Transpose", w, perm=(2, 3, 0, 1, 4, 5)), b.ints(9, -1))
    g = b("Constant", value=np.kron(_G[m], _G[m]).astype(np.float32))
    planes = b("MatMul", g, taps)
    return b("Reshape", planes, b.ints((m + 2) ** 2, *blocks, _BLOCK, _BLOCK))


def recover_filters(planes: npt.NDArray[Any], m: int) -> npt.NDArray[Any]:
    """The inverse of :func:`transform`, padding kept: ``[16·Ob, 16·Ib, 3, 3]``."""
    _, ob, ib, *_ = planes.shape
    split = planes.reshape(m + 2, m + 2, ob, ib, _BLOCK, _BLOCK).transpose(2, 5, 3, 4, 0, 1)
    wide = split.reshape(ob * _BLOCK, ib * _BLOCK, m + 2, m + 2)
    kernels: npt.NDArray[Any] = _BACK[m] @ wide @ _BACK[m].T
    return kernels


def recover_filters_to_onnx(b: BodyBuilder, planes: str, m: int, inputs: int) -> str:
    """Emit :func:`recover_filters` as nodes; ``inputs`` counts blocks of input channels."""
    transposed = b("Transpose", planes, perm=(1, 4, 2, 3, 0))
    wide = b("Reshape", transposed, b.ints(-1, _BLOCK * inputs, m + 2, m + 2))
    back = b("Constant", value=_BACK[m])
    there = b("Constant", value=np.ascontiguousarray(_BACK[m].T))
    return b("MatMul", b("MatMul", back, wide), there)
