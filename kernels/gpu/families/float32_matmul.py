"""Float32 matmul by fused multiply-adds: full precision, and infinities propagate correctly.

Block barriers separate copies from reads; no copy is in flight during a read.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tracea_graph.kernels.gpu.families.tensor_core_matmul import arguments, epilogue, name
from tracea_graph.kernels.gpu.launch import Launch
from tracea_graph.kernels.gpu.semantic.bank_conflicts import Access, prove_free
from tracea_graph.kernels.gpu.semantic.fragment_layouts import WARP
from tracea_graph.kernels.gpu.semantic.multistage_pipeline import BarrierMode, Ring, prove
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call

__all__ = ["launch", "name", "parameters", "shared"]

_RUN = 4
"""Number of adjacent columns that one thread computes."""
_PAD = 4
"""Words of padding between rows of shared memory, so that stores of a column use all banks."""


@cache
def _prove(side: int, k: int) -> None:
    """Prove a ``side`` × ``k`` operand tile conflict-free; raises GraphError otherwise."""
    pitch = side + _PAD
    transposed = tuple(4 * (lane % k * pitch + lane // k) for lane in range(WARP))
    left = tuple(lane // 16 * 16 for lane in range(WARP))
    right = tuple(lane % 16 * 16 for lane in range(WARP))
    prove_free([Access("store", 4, transposed), Access("a", 16, left), Access("b", 16, right)])
    prove(Ring(1, BarrierMode.NONE))


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    for side in ("m", "n"):
        _prove(variant.params[side], variant.params["k"])
    return {**epilogue(call), "run": _RUN}


def shared(call: Call, variant: Variant) -> int:
    p = variant.params
    return 4 * p["k"] * (p["m"] + p["n"] + 2 * _PAD)


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    blocks, made = arguments(call, variant.params["m"], variant.params["n"])
    taken = shared(call, variant)
    return Launch(symbol, (blocks, 1, 1), variant.threads, taken, tuple(made))
