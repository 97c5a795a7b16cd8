"""ONNX Runtime sessions for constant folding: quiet, single-threaded, without optimizations."""

from __future__ import annotations

from typing import Any

__all__ = ["plain_session"]


def plain_session(model: bytes) -> Any:
    """Open a CPU session over a small model; exceptions of the binding propagate."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.enable_mem_reuse = False  # planning memory reuse is quadratic in the number of nodes
    return ort.InferenceSession(model, options, ["CPUExecutionProvider"], enable_fallback=0)
