"""Products as tuning problems: everything the time of one call depends on but its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tracea_graph.kernels.cpu.calls import CALLS, GEMM_DTYPES
from tracea_graph.kernels.cpu.lowering.gemm import GEMM_SCHEDULES
from tracea_graph.kernels.cpu.panels import PANEL
from tracea_graph.kernels.program import Call, Schedule, View
from tracea_graph.ops.chain import Chain

__all__ = ["IN_PAIRS", "PRODUCTS", "TILE", "TYPICAL_ROWS", "GemmProblem", "product_of"]

IN_PAIRS = tuple(w for w, dtype in GEMM_DTYPES.items() if dtype in ("bf16", "int16"))
"""Layouts where two steps of k lie together."""
PRODUCTS = ("gemm", "gemm_bf16", "gemm_int16")
"""Kernels whose division of the work a plan may choose."""
TYPICAL_ROWS = (1, 16, 128, 1024)
"""The row count that stands for each row class that nobody asked for."""
TILE: Mapping[str, str] = MappingProxyType({"panels": "nr_panels", "rows": "mc", "columns": "nc"})
"""What a hint's tile may say, and the names of a schedule for it."""
_TUNED_LAYOUTS = ("panels", "kn", *IN_PAIRS)
"""Weights ``[N, K]`` are read by rows, where schedules have no say."""


@dataclass(frozen=True)
class GemmProblem:
    """One product up to its row count: ``y[M,N] = epilogue(x[M,K] · w + bias)``.

    ``layout`` is how the weights lie, the attribute of its call, but not ``nk``; ``parts`` are the
    widths of several products side by side, which sum up to ``n``; empty for one.
    """

    k: int
    n: int
    layout: str = "panels"
    bias: bool = True
    epilogue: Chain | None = None
    parts: tuple[int, ...] = ()

    @property
    def multiplies(self) -> str:
        """The element type its call is for."""
        return GEMM_DTYPES[self.layout]

    @property
    def kernel(self) -> str:
        return Call.name_of("gemm", self.multiplies)

    @property
    def dtype(self) -> str:
        """Type of the operands: ``f32``, ``bf16``, ``i16``, or ``weight_only_bf16`` (x in f32)."""
        return {"vnni2": "bf16", "weight_only_bf16": "weight_only_bf16", "int16": "i16"}.get(
            self.layout, "f32"
        )

    @property
    def weight_bytes(self) -> int:
        """Bytes of the stored weights, padding included."""
        width = self.n if self.layout == "kn" else -(-self.n // PANEL) * PANEL
        return (2 if self.layout in IN_PAIRS else 4) * self.k * width

    @property
    def defaults(self) -> tuple[Schedule, ...]:
        """The schedule of each class of row counts."""
        return GEMM_SCHEDULES

    @property
    def typical_rows(self) -> tuple[int, ...]:
        return TYPICAL_ROWS

    @property
    def unit(self) -> str:
        return "row"

    @property
    def reuses_weights(self) -> bool:
        return False

    @property
    def tile(self) -> Mapping[str, str]:
        return TILE

    @property
    def stages(self) -> str:
        """Whether the next weights are fetched meanwhile."""
        return "prefetch"

    def flops(self, rows: int) -> float:
        """Operations at so many rows."""
        return 2.0 * rows * self.k * self.n

    def moved(self, rows: int) -> float:
        """Bytes of the weights, x and the results, once each."""
        return self.weight_bytes + 4.0 * rows * (self.k + self.n)

    @property
    def sizes(self) -> dict[str, int]:
        """Its sizes by name, as telemetry and candidates' entry points have them."""
        return {"k": self.k, "n": self.n}

    @property
    def key(self) -> dict[str, Any]:
        """JSON-ready values that tell problems apart in the cache."""
        return {
            "kernel": self.kernel,
            "k": self.k,
            "n": self.n,
            "layout": self.layout,
            "bias": self.bias,
            "epilogue": self.epilogue.text if self.epilogue else "",
            "parts": "+".join(map(str, self.parts)),
        }

    def __str__(self) -> str:
        width = "+".join(map(str, self.parts)) or str(self.n)
        return f"{self.kernel} {self.k}x{width}" + (" + epilogue" if self.epilogue else "")


def product_of(call: Call) -> GemmProblem | None:
    """The product of a call, or None where schedules have no say.

    Those are weights stored ``[N, K]``, batches, operands that lie transposed, and
    weights that are computed.
    """
    layout, named = call.attributes["layout"], CALLS.of(call).named(call)
    if layout not in _TUNED_LAYOUTS:
        return None
    x, weight = named["x"], named["w"]
    assert isinstance(x, View) and isinstance(weight, View)
    if weight.buffer.kind != "input":
        return None
    if len(x.dims) != 2 or x.strides[1] != 1 or weight.strides[-1] != 1:
        return None
    count, last = call.attributes["parts"], named["y"]
    assert isinstance(last, tuple)
    results = [view for view in last[-count:] if view is not None]
    k, parts = x.dims[1], [d for view in results if isinstance(d := view.dims[1], int)]
    if not isinstance(k, int) or len(parts) < count:
        return None
    several = tuple(parts) if len(parts) > 1 else ()
    return GemmProblem(k, sum(parts), layout, named["bias"] is not None, call.chain, several)
