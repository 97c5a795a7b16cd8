"""The policy: which variant, tiling and schedules an operator gets on a target, and why.

    engine = PolicyEngine(backend.catalog, levels)
    engine.decide(OperatorTopology("gemm", 128, 768, 768)).variant_id

Planning asks the policy about every kernel call, the tuner about every space that it searches, and
``Context.plan_kernel`` about problems that a user names; all get the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from tracea_graph.errors import UsageError, did_you_mean
from tracea_graph.hardware.machine_measurements import Measurements
from tracea_graph.ir import TensorSpec, assumed_size
from tracea_graph.kernels.operations import ALIASES, KernelOperation
from tracea_graph.kernels.program import Call, Program
from tracea_graph.policy.kernel_catalog import KernelCatalog, SizeOf
from tracea_graph.policy.kernel_decision import KernelPlan, PolicyDecision, RejectedVariant
from tracea_graph.policy.machine_model import Machine
from tracea_graph.policy.operator_topology import (
    BlockSparse,
    Channelwise,
    LowRank,
    OperatorTopology,
    Permuted,
    Pointwise,
    Rowwise,
    Transformed,
    UnstructuredSparse,
    Windowed,
    fallback_dtypes,
    topology_of,
)

__all__ = ["CallDecision", "PolicyEngine"]

_STREAM_ROWS = 4
"""Rows up to which a product is bound by the bandwidth of its weights."""


@dataclass(frozen=True)
class CallDecision:
    """One kernel call of a region, and what the policy decided for it.

    ``link`` says why threads wait for rows before the call, or for each other; empty if the
    library decides.
    """

    call: str
    decision: PolicyDecision
    link: str = ""


class PolicyEngine:
    """Chooses the variants and schedules of kernels for one target.

    ``levels`` are the ISA levels that a library has code for and the machine may run, lowest
    first; ``figures`` only add modelled times to the answers.
    """

    def __init__(
        self,
        catalog: KernelCatalog,
        levels: Sequence[str],
        figures: Measurements | None = None,
        target: str = "",
    ) -> None:
        self.catalog, self.levels, self.figures = catalog, tuple(levels), figures
        self.target = target or catalog.backend
        self._decided: dict[OperatorTopology, PolicyDecision] = {}

    def decide(self, topology: OperatorTopology) -> PolicyDecision:
        """Return the policy's answer for one operator.

        Raises UsageError if no variant of the backend qualifies.
        """
        if (known := self._decided.get(topology)) is not None:
            return known
        ranked = self.catalog.candidates(topology, self.levels, self.figures)
        if not ranked or not ranked[0].fits:
            why = "; ".join(f"{c.id} {c.why}" for c in ranked) or "there is none"
            raise UsageError(f"no variant of {topology.op} in {topology.dtype} qualifies: {why}")
        winner, *others = ranked
        tiling, why_tiling = _tiling(topology)
        order, why_order = self.catalog.order(topology)
        schedules, why_schedules = self.catalog.schedules(topology)
        reasons = (why_tiling, why_order, f"{winner.id}: {winner.why}", why_schedules)
        made = PolicyDecision(
            topology, self.catalog.backend, tiling, order, winner, tuple(others), schedules,
            tuple(filter(None, reasons)),
        )  # fmt: skip
        self._decided[topology] = made
        return made

    def planned(
        self,
        program: Program,
        specs: Sequence[TensorSpec],
        bindings: Mapping[str, int],
        rank: int | None = None,
        machine: Machine | None = None,
    ) -> tuple[Program, tuple[CallDecision, ...]]:
        """Return a lowered program with the policy's schedules, and the decision for each call.

        ``specs`` describe the operands of the node; ``bindings`` are the assumed symbol values.
        If ``rank`` is given, the matrix that the program multiplies by is a factor of a matrix of
        that rank.  The figures of ``machine`` decide what separates calls.
        """
        size_of = _size_of(program, specs, bindings)
        calls, found = list[Call](), list[CallDecision]()
        for call in program.calls:
            topology = self.catalog.topology(call, size_of)
            if rank is not None and 1 <= rank <= min(topology.k, topology.n):
                topology = replace(topology, kind=LowRank(rank))
            decision = self.decide(topology)
            found.append(CallDecision(call.name, decision))
            scheduled = decision.schedules and not call.schedules
            calls.append(replace(call, schedules=decision.schedules) if scheduled else call)
        if machine is not None:
            topologies = [one.decision.topology for one in found]
            linked, reasons = self.catalog.linked(calls, topologies, machine)
            calls = list(linked)
            found = [replace(a, link=why) for a, why in zip(found, reasons, strict=True)]
        return replace(program, calls=tuple(calls)), tuple(found)

    # ---- problems that a user names ------------------------------------------------------

    def operation(self, name: str) -> KernelOperation:
        """Return the operation of a name or alias.  Raises UsageError for an unknown one."""
        known = self.catalog.operations
        word = name.lower().replace("-", "_")
        word = ALIASES.get(word, word)
        if word in known:
            return known[word]
        aliases = (a for a, of in ALIASES.items() if of in known)
        which = did_you_mean(word, (*known, *aliases)) or f"; there are {', '.join(sorted(known))}"
        raise UsageError(f"{self.catalog.backend} has no kernels for {name!r}{which}")

    def plan_kernel(
        self,
        op: str,
        shape: Sequence[int] | None = None,
        dtype: str = "f32",
        able: Callable[[str], bool] = lambda dtype: True,
    ) -> KernelPlan:
        """Return the kernel for a problem, in ``dtype`` or its first fallback type with kernels.

        Without a shape, the operation's default shape is assumed, and ``shape_note`` says so.
        ``able`` returns whether the target computes in an element type.  Raises UsageError for an
        unknown operation, and for a wrong number of sizes.
        """
        operation = self.operation(op)
        sizes = tuple(shape) if shape is not None else operation.default
        known = {c: self.catalog.dtypes(c) for c in operation.calls}
        chain = [d for d in fallback_dtypes(dtype) if d == "f32" or able(d)]
        pairs = [(c, d) for d in chain for c in operation.calls if d in known[c]]
        pairs += [(c, d) for c in operation.calls for d in known[c]]  # if none of those has any
        call, used = pairs[0]
        note = "" if used == dtype else f"{used} is used: no kernel of {call} computes in {dtype}"
        decision = self.decide(topology_of(operation, call, sizes, used))
        named = dict(zip(operation.sizes, sizes, strict=True))
        listed = "x".join(map(str, sizes))
        return replace(
            _plan(operation, call, decision, self.target, named),
            shape_note=f"no shape was given: {listed} is assumed" if shape is None else "",
            precision_note=note,
            wanted=dtype,
        )


def _size_of(program: Program, specs: Sequence[TensorSpec], bindings: Mapping[str, int]) -> SizeOf:
    """The sizes of a program's views; in loops, those of the first iteration."""
    bound = {
        symbol: assumed_size((specs[i].shape or ())[axis], bindings)
        for symbol, (i, axis) in program.symbols.items()
    }
    for loop in program.loops:
        extent = assumed_size(loop.extent, bound)
        bound |= {loop.start: 0, loop.end: min(loop.step, extent)}
    return partial(assumed_size, bindings=bound)


def _plan(
    operation: KernelOperation,
    call: str,
    decision: PolicyDecision,
    target: str,
    sizes: dict[str, int],
) -> KernelPlan:
    winner, topology = decision.winner, decision.topology
    schedule = asdict(decision.schedule) if decision.schedule else {}
    gflops = topology.flops / winner.us * 1e-3 if winner.us else None
    return KernelPlan(
        operation.name, Call.name_of(call, topology.dtype), sizes, target, decision.backend,
        winner.level, winner.id, topology.dtype, topology.dtype, decision.tiling, decision.order,
        schedule, decision.reasons,
        tuple(RejectedVariant(c.id, c.level, c.why) for c in decision.others),
        us=winner.us, gflops=gflops,
    )  # fmt: skip


def _tiling(t: OperatorTopology) -> tuple[str, str]:
    """How the results are tiled, and why, from the structure of the right operand."""
    match t.kind:
        case LowRank(rank):
            share = t.flops / (2.0 * t.batch * t.m * t.n * t.k)
            return (
                "two-products",
                f"a factor of rank {rank}: both factors take {share:.0%} of the dense FLOPs",
            )
        case BlockSparse(rows, columns, density):
            return "map", f"only the stored {density:.0%} of {rows}x{columns} blocks are visited"
        case UnstructuredSparse(density):
            return "bitmap", f"a bitmap says which {density:.0%} of the elements are stored"
        case Windowed(window):
            return "band", f"a row sees at most {2 * window + 1} of {t.n} columns"
        case Transformed(side):
            return "transformed", f"{side}x{side} results at a time by Winograd's transform"
        case Channelwise():
            return "grid", f"a separate filter for each of {t.batch} channels"
        case Rowwise():
            return (
                "rows",
                f"{_count(t.m, 'row')} of {_count(t.n, 'number')}, computed independently",
            )
        case Permuted():
            return (
                "elements",
                f"{_count(t.m * t.n, 'number')}, copied so that another axis is contiguous",
            )
        case Pointwise():
            return "elements", f"{_count(t.m * t.n, 'number')}, computed independently"
    if t.m <= _STREAM_ROWS:
        return (
            "stream",
            f"{_count(t.m, 'row')}: bound by reading the {t.k}x{t.n} operand",
        )
    return "grid", f"dense: {t.m}x{t.n} results in tiles"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
