"""Products as tuning problems: all that a call's time depends on, except the row count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from tracea_graph.kernels.cpu.calls import CALLS, GEMM_DTYPES
from tracea_graph.kernels.cpu.panels import PANEL
from tracea_graph.kernels.cpu.schedule import GEMM_SCHEDULES
from tracea_graph.kernels.program import Call, Program, Schedule, View
from tracea_graph.ops.chain import Chain

__all__ = [
    "BYTES",
    "IN_PAIRS",
    "PRODUCTS",
    "SPLIT",
    "TILE",
    "TYPICAL_ROWS",
    "GemmProblem",
    "product_of",
]

IN_PAIRS = tuple(w for w, dtype in GEMM_DTYPES.items() if dtype in ("bf16", "int16"))
"""Layouts with interleaved pairs of k."""
PRODUCTS = ("gemm", "gemm_bf16", "gemm_int16", "gemm_bf16x2", "gemm_int8")
"""Kernels that take schedules."""
TYPICAL_ROWS = (1, 16, 128, 1024)
"""Row count that represents each row class if none was requested."""
TILE: Mapping[str, str] = MappingProxyType({"panels": "nr_panels", "rows": "mc", "columns": "nc"})
"""Keys of a hint's tile, and the schedule fields they set."""
SPLIT = "bf16x2"
"""The layout that stores each number as a high and a low term."""
BYTES = "int8"
"""The layout that multiplies four adjacent numbers at once."""
_TUNED_LAYOUTS = ("panels", "kn", *IN_PAIRS, SPLIT, BYTES)
"""Layouts that schedules apply to; weights ``[N, K]`` are read by rows instead."""


@dataclass(frozen=True)
class GemmProblem:
    """One product for any number of rows: ``y[M,N] = epilogue(x[M,K] · w + bias)``.

    * ``layout``: weight layout, named as in the call's attribute; never ``nk``
    * ``k``: depth, padded for bf16x2
    * ``parts``: widths of the results, which add up to ``n``; empty for a single result
    * ``x_type``, only for int8: element type of x
    * ``given_zero``, only for int8: the zero point of x is an operand
    * ``own_zeros``, only for int8: columns of w have zero points
    """

    k: int
    n: int
    layout: str = "panels"
    bias: bool = True
    epilogue: Chain | None = None
    parts: tuple[int, ...] = ()
    x_type: str = ""
    given_zero: bool = False
    own_zeros: bool = False

    @property
    def multiplies(self) -> str:
        """Element type of the call."""
        return GEMM_DTYPES[self.layout]

    @property
    def kernel(self) -> str:
        return Call.name_of("gemm", self.multiplies)

    @property
    def dtype(self) -> str:
        """Type of the operands: f32, bf16, i16, i8, bf16x2, or weight_only_bf16 (x in f32)."""
        own = {"vnni2": "bf16", "weight_only_bf16": "weight_only_bf16", "int16": "i16"}
        return {**own, BYTES: "i8", SPLIT: SPLIT}.get(self.layout, "f32")

    @property
    def weight_bytes(self) -> int:
        """Bytes of the stored weights, padding included."""
        if self.layout == BYTES:
            return 4 * PANEL * -(-self.n // PANEL) * (self.k // 4 + 1 + self.own_zeros)
        width = self.n if self.layout == "kn" else -(-self.n // PANEL) * PANEL
        return (2 if self.layout in IN_PAIRS else 4) * self.k * width

    @property
    def defaults(self) -> tuple[Schedule, ...]:
        """Return the default schedules, one for each range of row counts."""
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
        """Name of the schedule field that turns on weight prefetching."""
        return "prefetch"

    def rows_of(self, dims: Sequence[int]) -> int:
        """The number of rows of a call whose x has these dims."""
        return dims[0]

    def flops(self, rows: int) -> float:
        """Operations for ``rows`` rows."""
        return 2.0 * rows * self.k * self.n

    def moved(self, rows: int) -> float:
        """Bytes of the weights, x and the results for ``rows`` rows; each byte is counted once."""
        x = 1.0 if self.layout == BYTES else 4.0
        return self.weight_bytes + rows * (x * self.k + 4.0 * self.n)

    @property
    def sizes(self) -> dict[str, int]:
        """The problem's sizes by name, as in telemetry and entry points of candidates."""
        return {"k": self.k, "n": self.n}

    @property
    def key(self) -> dict[str, Any]:
        """JSON-ready values that identify the problem in the cache."""
        integers = {"x": self.x_type, "zeros": [self.given_zero, self.own_zeros]}
        return {
            "kernel": self.kernel,
            "k": self.k,
            "n": self.n,
            "layout": self.layout,
            "bias": self.bias,
            "epilogue": self.epilogue.text if self.epilogue else "",
            "parts": "+".join(map(str, self.parts)),
            **(integers if self.x_type else {}),
        }

    def __str__(self) -> str:
        width = "+".join(map(str, self.parts)) or str(self.n)
        return f"{self.kernel} {self.k}x{width}" + (" + epilogue" if self.epilogue else "")


def product_of(program: Program, call: Call) -> GemmProblem | None:
    """The product of a call, or None if schedules do not apply to it.

    They do not apply to weights ``[N, K]``, batches, transposed operands and computed weights.
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
    k = k // 2 if layout == SPLIT else k
    several = tuple(parts) if len(parts) > 1 else ()
    found = GemmProblem(k, sum(parts), layout, named["bias"] is not None, call.chain, several)
    if layout != BYTES:
        return found
    x_type = program.dtype_of(x.buffer)
    assert x_type is not None
    return replace(
        found, x_type=x_type.name, given_zero=named["x_zero"] is not None,
        own_zeros=named["row_sums"] is not None,
    )  # fmt: skip
