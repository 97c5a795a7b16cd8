"""Whether a model has an answer to be equal to: one that rounding cannot move.

Every float value is multiplied by random numbers within ``1 ± JITTER``.  A model whose outputs
then move by more than ``MOVED`` of ``max|y|`` (the spread of equal numbers, a jump that a rounded
value may cross) would be called wrong by any other order of the same arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import helper

__all__ = ["Array", "answers", "steady"]

Array = npt.NDArray[Any]
JITTER, MOVED = 1e-6, 2e-5
"""Rounding to float32 moves a value by up to 6e-8; what is allowed are 1e-4."""
_RANDOM = 21
"""The newest opset of which ONNX Runtime has RandomUniformLike."""


def steady(model: onnx.ModelProto, feeds: Mapping[str, Mapping[str, Array]]) -> bool:
    """True if some feed is taken, and every output under each such feed is finite and stands."""
    plain, moved = _session(model), [_session(m) for m in _jittered_twice(model)]
    found = {_stands(plain, moved, feed) for feed in feeds.values()}
    return True in found and False not in found


def answers(model: onnx.ModelProto, feed: Mapping[str, Array]) -> list[Array]:
    """ONNX Runtime's, its optimizations off."""
    return list(_session(model).run(None, dict(feed)))


def _session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def _jittered_twice(model: onnx.ModelProto) -> list[onnx.ModelProto]:
    """Two of them; none for operators newer than ONNX Runtime's RandomUniformLike."""
    if any(node.op_type == "Attention" for node in model.graph.node):
        return []
    return [_jittered(model, seed) for seed in (1, 2)]


def _jittered(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The model with a multiplication behind every float value."""
    typed = onnx.shape_inference.infer_shapes(model)
    floats = {
        v.name
        for v in (*typed.graph.value_info, *typed.graph.output)
        if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    }
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:]
    for opset in made.opset_import:
        opset.version = min(opset.version, _RANDOM)
    low, high = 1.0 - JITTER, 1.0 + JITTER
    for count, node in enumerate(model.graph.node):
        node = _copy(made, node)
        for i, name in enumerate(node.output):
            if name not in floats or node.op_type == "Constant":
                continue
            node.output[i] = f"{name}__raw"
            made.graph.node.extend(
                [
                    helper.make_node(
                        "RandomUniformLike", [f"{name}__raw"], [f"{name}__by"],
                        low=low, high=high, seed=float(seed * 1000 + count), dtype=1,
                    ),
                    helper.make_node("Mul", [f"{name}__raw", f"{name}__by"], [name]),
                ]
            )  # fmt: skip
    return made


def _copy(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.NodeProto:
    found = model.graph.node.add()
    found.CopyFrom(node)
    return found


def _stands(
    plain: onnxruntime.InferenceSession,
    moved: list[onnxruntime.InferenceSession],
    feed: Mapping[str, Array],
) -> bool | None:
    """None if these are sizes that the model does not take."""
    try:
        wanted = plain.run(None, dict(feed))
    except Exception:
        return None
    return all(
        _near(x, y)
        for session in moved
        for x, y in zip(session.run(None, dict(feed)), wanted, strict=True)
    )


def _near(x: Array, y: Array) -> bool:
    if y.dtype.kind != "f":
        return bool(np.array_equal(x, y))
    if not np.isfinite(y).all() or not np.isfinite(x).all():
        return False
    scale = float(np.abs(y).max(initial=0.0))
    return float(np.abs(x - y).max(initial=0.0)) <= MOVED * scale
