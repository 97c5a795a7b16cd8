"""Bound the speedup over ONNX Runtime that products allow on this machine.

    c = ONNX Runtime's time / (operations of products / peak + softmax)

The peak is that of one core, measured with the benchmark; a softmax costs 10 cycles per 16
elements. Operators that fusion can hide count nothing, so c is an upper bound.
"""

from __future__ import annotations

from tracea_graph.hardware.machine_measurements import Measurements

__all__ = ["DTYPES", "ceilings"]

DTYPES = ("f32", "bf16")
_SOFTMAX_CYCLES, _SOFTMAX_LANES = 10.0, 16.0


def ceilings(ms: float, gflop: float, softmax: float, figures: Measurements) -> tuple[float, ...]:
    """Return c for each of :data:`DTYPES` on one thread; 0 for types the processor cannot
    multiply.

    ``ms`` is ONNX Runtime's time on one thread, ``softmax`` the number of elements it computes.
    """
    beside = softmax / _SOFTMAX_LANES * _SOFTMAX_CYCLES / figures.ghz / 1e9
    peaks = [max((p.gops for p in figures.peaks if p.dtype == d), default=0.0) for d in DTYPES]
    seconds = [gflop / peak + beside if peak else 0.0 for peak in peaks]
    return tuple(ms / 1e3 / s if s else 0.0 for s in seconds)
