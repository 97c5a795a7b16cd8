"""Matrix multiplications as tuning problems, and the tiles that they can run in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

from tracea_graph.errors import GraphError
from tracea_graph.ir import DType, Extent, TensorSpec, evaluate
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.emitter import shared_of
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.kernel_selection import (
    FEW_ROWS,
    for_variant,
    refusal_of,
    tile_numbers,
    variants_of,
)
from tracea_graph.kernels.gpu.schedule import TILE_SCHEDULES, TileSchedule
from tracea_graph.kernels.gpu.tile_choice import most_few
from tracea_graph.kernels.gpu.variants import VARIANTS, Variant
from tracea_graph.kernels.program import Buffer, Call, Program, Schedule, Temp, View
from tracea_graph.ops.chain import Chain
from tracea_graph.policy import OperatorTopology
from tracea_graph.tuning.tuning_problem import Problem

__all__ = [
    "TILE_FIELDS",
    "MatmulProblem",
    "TensorCoreProblem",
    "TiledProblem",
    "config_of",
    "matmul_of",
    "tiles_of",
    "variant_run",
]  # fmt: skip

TILE_FIELDS: Mapping[str, str] = MappingProxyType({
    "m": "m", "n": "n", "k": "k", "buffers": "stages", "split": "split", "pingpong": "pingpong",
    "pair": "pair",
})  # fmt: skip
"""Keys of a hint's tile, and the schedule field that each sets."""


class TiledProblem(Problem, Protocol):
    """A problem whose calls run in tiles of :class:`TileSchedule`; it is hashable.

    ``op`` is the op of the call, ``multiplies`` its compute type.  ``k`` and ``n`` are the depth
    and the number of columns of the matmul, or of the matmul that a convolution is equal to.
    ``fits`` says whether a kernel can compute the call with a number of rows.
    """

    op: ClassVar[str]

    def __hash__(self) -> int: ...
    @property
    def multiplies(self) -> str: ...
    @property
    def static(self) -> bool: ...
    @property
    def epilogue(self) -> Chain | None: ...
    @property
    def k(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def key(self) -> dict[str, Any]: ...
    def topology(self, rows: int) -> OperatorTopology: ...
    def fits(self, variant: Variant, rows: int) -> bool: ...
    def program(self, schedules: tuple[Schedule, ...] = (), rows: Extent = "m") -> Program: ...
    def call(self, rows: int, schedules: tuple[Schedule, ...] = ()) -> Call: ...


class TensorCoreProblem:
    """Properties that the problems have in common."""

    multiplies: str

    @property
    def dtype(self) -> str:
        """Type of the multiplication."""
        return self.multiplies

    @property
    def element(self) -> DType:
        """Element type of x and the weights."""
        return TYPES[self.multiplies]

    @property
    def typical_rows(self) -> tuple[int, ...]:
        """Empty: only the numbers of rows that a model is used with are tuned."""
        return ()

    @property
    def reuses_weights(self) -> bool:
        return False

    @property
    def tile(self) -> Mapping[str, str]:
        return TILE_FIELDS

    @property
    def stages(self) -> str:
        """Empty: the number of stages is part of the tile."""
        return ""

    def rows_of(self, dims: Sequence[int]) -> int:
        """Return the number of rows or images of a call from the dims of x."""
        return dims[0]

    def fits(self, variant: Variant, rows: int) -> bool:
        """Return True: kernels may compute any number of rows."""
        return True


@dataclass(frozen=True)
class MatmulProblem(TensorCoreProblem):
    """One multiplication ``y[M,N] = epilogue(norm(x[M,K]) · w + bias)`` for any number of rows.

    ``multiplies`` is the call's compute type.  ``static``: the model fixes the number
    of rows; the backend's rule then chooses the tile for exactly this number.
    """

    k: int
    n: int
    multiplies: str
    layout: str = "nk"
    norm: str = "none"
    bias: bool = True
    epilogue: Chain | None = None
    static: bool = False
    op: ClassVar[str] = "gemm"

    @property
    def defaults(self) -> tuple[Schedule, ...]:
        """The tile that the backend's rule chooses for each range of row counts."""
        return TILE_SCHEDULES

    @property
    def unit(self) -> str:
        return "row"

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights."""
        return self.k * self.n * int(self.element.size)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes by name, as in telemetry and entry points of candidates."""
        return {"k": self.k, "n": self.n}

    @property
    def key(self) -> dict[str, Any]:
        """JSON-ready values that identify the problem in the cache."""
        return {
            "kernel": Call.name_of("gemm", self.multiplies), "k": self.k, "n": self.n,
            "layout": self.layout, "norm": self.norm, "bias": self.bias,
            "epilogue": self.epilogue.text if self.epilogue else "", "static": self.static,
        }  # fmt: skip

    def topology(self, rows: int) -> OperatorTopology:
        """Return the topology of the call with ``rows`` rows."""
        return OperatorTopology("gemm", rows, self.n, self.k, dtype=self.multiplies)

    def fits(self, variant: Variant, rows: int) -> bool:
        """Return whether a kernel of few rows is for so many."""
        return rows <= most_few(self.n) or variant.template != FEW_ROWS

    def flops(self, rows: int) -> float:
        """Return the number of operations for ``rows`` rows."""
        return 2.0 * rows * self.k * self.n

    def moved(self, rows: int) -> float:
        """Return the bytes of weights, x and results of ``rows`` rows, each counted once."""
        return self.weight_bytes + float(self.element.size) * rows * (self.k + self.n)

    def __str__(self) -> str:
        norm = f"{self.norm} norm + " if self.norm != "none" else ""
        name = Call.name_of("gemm", self.multiplies)
        return f"{norm}{name} {self.k}x{self.n}" + (" + epilogue" if self.epilogue else "")

    def program(self, schedules: tuple[Schedule, ...] = (), rows: Extent = "m") -> Program:
        """Build a program of this call only.

        Its last input is the result of the node before it when a chain of such nodes is timed; the
        program does not read it.
        """
        inputs, outputs, temps = list[TensorSpec](), list[TensorSpec](), list[Temp]()

        def taken(dtype: DType, *shape: Extent) -> View:
            inputs.append(TensorSpec(dtype, shape))
            return View.dense(Buffer("input", len(inputs) - 1), shape)

        def made(dtype: DType, *shape: Extent) -> View:
            outputs.append(TensorSpec(dtype, shape))
            return View.dense(Buffer("output", len(outputs) - 1), shape)

        def scratch(count: Extent) -> View:
            temps.append(Temp(DType.F32, count, 0, 0))
            return View.dense(Buffer("temp", len(temps) - 1), (count,))

        k, n, chain, f32 = self.k, self.n, self.epilogue, DType.F32
        named: dict[str, Any] = {"x": taken(self.element, rows, k)}
        shape = (n, k) if self.layout == "nk" else (k, n)
        named["w"] = taken(self.element, *shape)
        named["bias"] = taken(f32, n) if self.bias else None
        if self.multiplies in ("f16", "bf16"):
            layer = self.norm == "layer"
            named["column_sums"] = taken(f32, n) if layer else None
            named["mean"] = scratch(rows) if layer else None
            named["inverse"] = scratch(rows) if self.norm != "none" else None
        ways: Mapping[str, tuple[tuple[Extent, ...], tuple[int, int]]] = {
            "full": ((rows, n), (n, 1)), "row": ((n,), (0, 1)), "col": ((rows,), (1, 0)),
            "scalar": ((1,), (0, 0)),
        }  # fmt: skip
        more = list[View]()
        kinds = zip(chain.operands[1:], chain.operand_types[1:], strict=True) if chain else ()
        for kind, dtype in kinds:
            dims, strides = ways[kind]
            more.append(View(taken(dtype, *dims).buffer, (rows, n), strides))
        results = chain.result_types if chain else (self.element,)
        named["inputs"] = more
        named["y"] = [made(dtype, rows, n) for dtype in results]
        numbers = {"norm": self.norm} if self.multiplies in ("f16", "bf16") else {}
        call = CALLS.make(
            "gemm", self.multiplies, chain=chain, schedules=schedules, layout=self.layout,
            **named, **numbers,
        )  # fmt: skip
        inputs.append(outputs[0])
        return Program(tuple(inputs), tuple(outputs), {"m": (0, 0)}, tuple(temps), (call,))

    def call(self, rows: int, schedules: tuple[Schedule, ...] = ()) -> Call:
        """Return the call; its number of rows is symbolic unless the model fixes it."""
        return self.program(schedules, rows if self.static else "m").calls[0]


def matmul_of(call: Call) -> MatmulProblem | None:
    """Return the problem of a call.

    Returns None for batches, symbolic sizes, split-K, and calls that exchange sums of rows.
    """
    if call.op != "gemm":
        return None
    named: dict[str, Any] = CALLS.of(call).named(call)
    x, w, y = named["x"], named["w"], named["y"][0]
    if named["partial"] is not None or any(len(v.dims) != 2 for v in (x, w, y)):
        return None
    depth, columns = x.dims[1], y.dims[1]
    if not isinstance(depth, int) or not isinstance(columns, int):
        return None
    if any(v.strides[1] != 1 for v in (x, w, y)) or len(named["y"]) > 1:
        return None
    if any(named.get(sums) for sums in ("x_sums", "y_sums")):  # two calls must choose alike
        return None
    return MatmulProblem(
        depth, columns, call.dtype, call.attributes["layout"],
        call.attributes.get("norm", "none"), named["bias"] is not None, call.chain,
        isinstance(x.dims[0], int),
    )  # fmt: skip


@cache
def tiles_of(problem: TiledProblem, level: str, rows: int = 1) -> tuple[Variant, ...]:
    """Return the variants that compute a problem with ``rows`` rows on an architecture."""
    architecture, call = ARCHITECTURES[level], problem.call(1)
    return tuple(
        v for v in VARIANTS
        if (v.op, v.dtype) == (problem.op, problem.multiplies) and not v.refusal(architecture)
        and not refusal_of(call, v) and problem.fits(v, rows)
        and shared_of(for_variant(call, v), v) <= architecture.block_shared
    )  # fmt: skip


def variant_run(problem: TiledProblem, rows: int, schedule: TileSchedule, level: str) -> Variant:
    """Return the variant that an architecture runs for a schedule at ``rows`` rows.

    Raises GraphError if the architecture has no kernel for the compute type.
    """
    able = tiles_of(problem, level, rows)
    own = replace(schedule, max_rows=2**31 - 1)
    for variant, when in variants_of(problem.call(rows, (own,))):
        if variant in able and evaluate(when, {"m": rows}) > 0:
            return variant
    raise GraphError(f"{level} has no kernel for {problem}")


def config_of(variant: Variant) -> dict[str, int]:
    """Return a variant as a configuration of the search space."""
    m, n, k, stages, split, pingpong, pair = tile_numbers(variant)
    return {"tile_m": m, "tile_n": n, "tile_k": k, "stages": stages, "split_k": split,
            "pingpong": pingpong, "pair": pair}  # fmt: skip
