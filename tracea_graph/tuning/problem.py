"""What is tuned: the products and convolutions of a model's programs, at any number of rows.

programs, shapes  →  workloads  →  (tuner)  →  drivers by problem  →  programs with drivers

The rows of a convolution are its images.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tracea_graph.ir import TensorSpec, evaluate
from tracea_graph.kernels.cpu.calls import CALLS, GEMM_DTYPES
from tracea_graph.kernels.cpu.lowering.gemm import DRIVERS
from tracea_graph.kernels.cpu.panels import PANEL
from tracea_graph.kernels.program import Call, Driver, Program, View
from tracea_graph.ops.chain import Chain
from tracea_graph.tuning.convolution import CONVOLUTIONS, ConvProblem, convolution_of

__all__ = [
    "IN_PAIRS", "Case", "Drivers", "GemmProblem", "Problem", "Workload", "default_of",
    "problem_of", "problems_of", "row_class", "with_drivers",
]  # fmt: skip

IN_PAIRS = tuple(w for w, dtype in GEMM_DTYPES.items() if dtype in ("bf16", "int16"))
"""Layouts where two steps of k lie together."""
_TUNED_LAYOUTS = ("panels", "kn", *IN_PAIRS)
"""Weights ``[N, K]`` are read by rows, where drivers have no say."""
_PRODUCTS = ("gemm", "gemm_bf16", "gemm_int16")


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
        """What is multiplied: ``f32``, ``bf16``, ``i16``, or ``mixed`` for bf16 weights alone."""
        return {"pairs": "bf16", "mixed": "mixed", "int16": "i16"}.get(self.layout, "f32")

    @property
    def weight_bytes(self) -> int:
        """Bytes of the stored weights, padding included."""
        width = self.n if self.layout == "kn" else -(-self.n // PANEL) * PANEL
        return (2 if self.layout in IN_PAIRS else 4) * self.k * width

    @property
    def defaults(self) -> tuple[Driver, ...]:
        """The driver of each class of row counts."""
        return DRIVERS

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


Problem = GemmProblem | ConvProblem


@dataclass(frozen=True)
class Case:
    """A problem at one row count."""

    problem: Problem
    rows: int

    @property
    def flops(self) -> float:
        return self.problem.flops(self.rows)

    @property
    def moved(self) -> float:
        return self.problem.moved(self.rows)

    def __str__(self) -> str:
        unit = "rows" if isinstance(self.problem, GemmProblem) else "images"
        return f"{self.problem}, {self.rows} {unit[: -1 if self.rows == 1 else None]}"


@dataclass(frozen=True)
class Workload:
    """A problem, how many nodes of a model have it, and their row counts when timed."""

    problem: Problem
    count: int = 1
    rows: tuple[int, ...] = ()


Drivers = Mapping[Problem, tuple[Driver, ...]]
"""A table for every row count, by problem."""


def row_class(problem: Problem, rows: int) -> int:
    """The index of the default driver, and so of the class, that a row count belongs to."""
    return next(i for i, driver in enumerate(problem.defaults) if rows <= driver.limit)


def default_of(case: Case) -> Driver:
    """The driver of the case's row class that a candidate has to beat."""
    return case.problem.defaults[row_class(case.problem, case.rows)]


def problem_of(program: Program, call: Call) -> Problem | None:
    """The problem a kernel call poses, or None where drivers have no say."""
    if call.name in CONVOLUTIONS:
        return convolution_of(program, call)
    return _product_of(call) if call.name in _PRODUCTS else None


def _product_of(call: Call) -> GemmProblem | None:
    """The product of a call, or None where drivers have no say.

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


def problems_of(
    placed: Iterable[tuple[Program, Sequence[TensorSpec]]],
    bindings: Sequence[Mapping[str, int]] = (),
) -> tuple[Workload, ...]:
    """The distinct problems of a model's programs, in order of appearance.

    Each program comes with the specs of its node's operands in the graph; row counts follow from
    them and the symbol values of each binding, and stay out where a symbol is not bound.
    """
    counts: dict[Problem, int] = {}
    rows: dict[Problem, set[int]] = {}
    for program, specs in placed:
        for call in program.calls:
            if (problem := problem_of(program, call)) is None:
                continue
            counts[problem] = counts.get(problem, 0) + 1
            found = rows.setdefault(problem, set())
            found.update(r for b in bindings if (r := _rows(program, call, specs, b)))
    return tuple(Workload(p, n, tuple(sorted(rows[p]))) for p, n in counts.items())


def _rows(
    program: Program, call: Call, specs: Sequence[TensorSpec], binding: Mapping[str, int]
) -> int:
    """Rows of a product under a binding; 0 where they are unknown."""
    x = call.views[0]
    assert x is not None
    try:
        local = {
            symbol: evaluate((specs[i].shape or ())[axis], binding)
            for symbol, (i, axis) in program.symbols.items()
        }
        for loop in program.loops:
            local |= next(iter(loop.turns(evaluate(loop.extent, local))), {})
        return evaluate(x.dims[0], local)
    except (KeyError, IndexError):
        return 0


def with_drivers(program: Program, drivers: Drivers) -> Program:
    """The program with its calls' drivers replaced where there are better ones."""
    return replace(program, calls=tuple(_better(program, c, drivers) for c in program.calls))


def _better(program: Program, call: Call, drivers: Drivers) -> Call:
    problem = problem_of(program, call)
    found = drivers.get(problem) if problem else None
    return replace(call, drivers=found) if found else call
