"""What a backend tells the policy about its kernels, with defaults derived from its calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType

from tracea_graph.hardware.machine_measurements import Measurements
from tracea_graph.ir import Extent
from tracea_graph.kernels.operations import OPERATIONS, KernelOperation
from tracea_graph.kernels.program import Call, Schedule
from tracea_graph.kernels.schema import Calls, CallSchema, Operand, Sizes
from tracea_graph.policy.kernel_decision import CandidateVariant
from tracea_graph.policy.machine_model import Machine
from tracea_graph.policy.operator_topology import Dense, Kind, OperatorTopology, Pointwise, Rowwise

__all__ = ["KernelCatalog", "SizeOf"]

SizeOf = Callable[[Extent], int]
"""Returns the value of an extent under assumed symbol values."""
_ROWWISE = (
    "norm", "channel_norm", "reduce", "arg", "arg_reduce", "softmax", "sum_rows", "top_k",
)  # fmt: skip
NO_CALLS = Calls(())


class KernelCatalog:
    """The kernels of a backend, and what the policy needs to know about them.

    The methods of this class suit a backend with one kernel per call; other backends override
    ``kind``, ``candidates``, ``order`` and ``schedules``.  A call without a schema in ``calls`` is
    treated as elementwise.
    """

    def __init__(
        self,
        backend: str,
        calls: Calls = NO_CALLS,
        operations: Mapping[str, KernelOperation] = OPERATIONS,
    ) -> None:
        self.backend, self._calls = backend, calls
        ops = {schema.op for schema in calls.values()}
        self.operations: Mapping[str, KernelOperation] = MappingProxyType(
            {name: o for name, o in operations.items() if not ops.isdisjoint(o.calls)}
        )
        """The operations that a user may ask for, by name."""

    def dtypes(self, op: str) -> tuple[str, ...]:
        """Return the element types that calls of an op exist in; none for an unknown op."""
        return tuple(s.dtype for s in self._calls.values() if s.op == op)

    # ---- calls -------------------------------------------------------------------------

    def topology(self, call: Call, size_of: SizeOf) -> OperatorTopology:
        """Return the topology of a call under assumed symbol values."""
        if (schema := self._calls.get(call.name)) is None:
            last = call.views[-1]
            *rows, columns = map(size_of, (last.dims if last else ()) or (1,))
            return OperatorTopology(call.op, max(1, prod(rows)), max(1, columns), 1, Pointwise())
        dims = {
            operand.name: [tuple(map(size_of, v.dims)) for v in call.views[at] if v is not None]
            for operand, at in zip(schema.operands, schema.slices(call).values(), strict=True)
        }
        sizes = Sizes(call, dims)
        kind = self.kind(schema, sizes)
        batch, m, n, k = (max(1, size) for size in self.problem(schema, sizes))
        *outer, inner = _sized(call, schema)
        static = all(isinstance(d, int) for d in outer)
        operands = len(call.chain.operands) if call.chain else 0
        dtype = self.dtype(call)
        return OperatorTopology(
            call.op, m, n, k, kind, dtype, batch, operands, static, isinstance(inner, int)
        )

    def dtype(self, call: Call) -> str:
        """Return the element type that selects among the variants of a call."""
        return call.dtype

    def kind(self, schema: CallSchema, sizes: Sizes) -> Kind:
        """Return the structure of a call's product; for other calls, how elements are computed."""
        if schema.problem is not None:
            return Dense()
        return Rowwise() if schema.op in _ROWWISE else Pointwise()

    def problem(self, schema: CallSchema, sizes: Sizes) -> tuple[int, ...]:
        """Return (batch, m, n, k) of a call; k is 1 for a call that is not a product."""
        if schema.problem is not None:
            return schema.problem(sizes)
        seen = next(o for o in _spanning(schema) if sizes.each(o.name))
        *rows, columns = sizes.each(seen.name)[0] or (1,)
        return 1, prod(rows), columns, 1

    # ---- choices -----------------------------------------------------------------------

    def candidates(
        self, topology: OperatorTopology, levels: Sequence[str], figures: Measurements | None
    ) -> tuple[CandidateVariant, ...]:
        """Return every variant of a call and why it runs or does not; the first one runs.

        ``levels`` are the ISA levels that the library has and the machine may run, lowest first.
        Modelled times need the ``figures`` of a machine.
        """
        name = Call.name_of(topology.op, topology.dtype)
        return (CandidateVariant(name, levels[-1], "the only kernel of this call"),)

    def order(self, topology: OperatorTopology) -> tuple[str, str]:
        """Return the order in which the kernel visits tiles, and why; no reason if it is fixed."""
        return "row-major", ""

    def schedules(self, topology: OperatorTopology) -> tuple[tuple[Schedule, ...], str]:
        """Return a call's default schedules and the reason; none if the library decides."""
        return (), ""

    def linked(
        self, calls: Sequence[Call], topologies: Sequence[OperatorTopology], machine: Machine
    ) -> tuple[tuple[Call, ...], tuple[str, ...]]:
        """Return a program's calls with what separates each from the one before, and the reasons.

        A reason is empty if the library or the device decides.
        """
        return tuple(calls), ("",) * len(calls)


def _spanning(schema: CallSchema) -> tuple[Operand, ...]:
    """The operands whose first view spans what a call computes: its results if it picks rows."""
    picks = any(o.touched == "picks" for o in schema.operands)
    results = schema.problem is not None or picks
    return tuple(o for o in schema.operands if o.written) if results else schema.operands


def _sized(call: Call, schema: CallSchema) -> tuple[Extent, ...]:
    """Dims of the first view that spans what a call computes."""
    places = schema.slices(call)
    views = (v for o in _spanning(schema) for v in call.views[places[o.name]] if v is not None)
    view = next(views, None)
    return (view.dims if view else ()) or (1,)
