"""Decompose EmbedLayerNormalization, as ONNX Runtime saves text encoders after its optimization.

EmbedLayerNormalization(ids, segments, words, positions, kinds, gamma, beta)
    ->  LayerNormalization(Gather(words, ids) + Gather(positions, 0 …) + Gather(kinds, segments))
Its second result, the number of ids of each row that a mask keeps
    ->  ReduceSum(mask = 1)

Source: ONNX Runtime's list of contributed operators.
"""

from __future__ import annotations

import numpy as np

from tracea_graph.ir import DType, Extent, TensorSpec
from tracea_graph.passes.decompose.onnx_builder import CannotDecompose, OnnxBuilder

__all__ = ["decompose_embed_layer_norm"]

_OPSET = 17
"""Opset that introduced LayerNormalization."""
_INDICES = (DType.I32, DType.I64)


def decompose_embed_layer_norm(s: OnnxBuilder) -> OnnxBuilder:
    ids, segments, words, positions, kinds, gamma, beta, mask, places = s.operands[:9]
    counts = (*s.region.results, "")[1]
    if not mask:
        s.unread(1)
    table, rows = s.image(words, positions, gamma, beta, *filter(None, (kinds,))), s.spec(ids)
    if s.graph.opset < _OPSET or rows.dtype not in _INDICES or len(rows.shape or ()) != 2:
        raise CannotDecompose("its ids are not rows of integers, or the opset is too old")
    if mask and counts:
        _count_kept(s, mask, counts)
    total = (*s.region.results, "", "")[2]
    made = TensorSpec(DType.F32, (*(rows.shape or ()), table[-1]))
    y = s("Gather", words, ids, spec=made, axis=0)
    if places:
        row = s("Gather", positions, places, axis=0, spec=TensorSpec(
            DType.F32, (*(s.spec(places).shape or ()), table[-1])))  # fmt: skip
    else:
        row = _first_rows(s, ids, positions, (rows.shape or ())[1])
    last = bool(segments) and bool(kinds)
    y = s("Add", y, row, spec=made, result="" if last else total)
    if last:
        kind = s("Gather", kinds, segments, spec=made, axis=0)
        y = s("Add", y, kind, spec=made, result=total)
    epsilon = float(s.attribute("epsilon", 1e-12))
    s("LayerNormalization", y, gamma, beta, spec=made, axis=-1, epsilon=epsilon)
    return s


def _count_kept(s: OnnxBuilder, mask: str, result: str) -> None:
    """Count the ones in each row of a mask ``[B,S]`` of int32."""
    spec = s.spec(mask)
    if spec.dtype is not DType.I32 or spec.shape is None or len(spec.shape) != 2:
        raise CannotDecompose("its mask is not a matrix of int32")
    one = s.entered(DType.I32, (), lambda: np.array(1, np.int32))
    kept = s("Equal", mask, one, spec=TensorSpec(DType.BOOL, spec.shape))
    numbers = s("Cast", kept, spec=spec, to=DType.I32.onnx)
    s("ReduceSum", numbers, s.indices(1), spec=TensorSpec(DType.I32, spec.shape[:1]),
      result=result, keepdims=0)  # fmt: skip


def _first_rows(s: OnnxBuilder, ids: str, positions: str, length: Extent) -> str:
    """Look up one row of positions for each id of a sequence, as exporters write it."""
    (most, width) = s.spec(positions).shape or (0, 0)
    if not isinstance(most, int):
        raise CannotDecompose("the number of its positions is not known")
    spec = TensorSpec(DType.F32, (1, length, width))
    if isinstance(length, int):
        return s("Gather", positions, s.constant([[*range(length)]], np.int64), spec=spec, axis=0)
    numbers = s.constant(np.arange(most)[None], np.int64)
    size = s("Shape", ids, spec=TensorSpec(DType.I64, (2,)))
    size = s("Gather", size, s.indices(1), spec=TensorSpec(DType.I64, (1,)), axis=0)
    places = s("Slice", numbers, s.indices(0), size, s.indices(1), s.indices(1),
               spec=TensorSpec(DType.I64, (1, length)))  # fmt: skip
    return s("Gather", positions, places, axis=0, spec=spec)
