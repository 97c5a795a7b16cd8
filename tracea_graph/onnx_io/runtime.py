"""ONNX Runtime as this package needs it: quiet, single-threaded, changing nothing."""

from __future__ import annotations

from typing import Any

__all__ = ["plain_session"]


def plain_session(model: bytes) -> Any:
    """A CPU session over a small model, optimizations off.  Raises what the binding raises."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.enable_mem_reuse = False  # planning it is quadratic: a minute for 10 000 nodes
    return ort.InferenceSession(model, options, ["CPUExecutionProvider"], enable_fallback=0)
