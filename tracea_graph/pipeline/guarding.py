"""Guarding: initializers that may be fed become constants where that is predicted to pay.

A guarded result compares what is fed with the defaults in every run, and runs the original's nodes
where it differs (``onnx_io.guards``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tracea_graph.errors import OutOfTime
from tracea_graph.ir import DType, Node, TensorSpec
from tracea_graph.kernels.program import OpType, Program
from tracea_graph.onnx_io import Function, Model, load
from tracea_graph.onnx_io.guards import CONDITION, reference_of
from tracea_graph.options import Options
from tracea_graph.pipeline.clock import Deadline
from tracea_graph.pipeline.inputs import Inputs
from tracea_graph.pipeline.planning import Planner
from tracea_graph.target import Backend, Target

__all__ = ["Guard", "condition_of", "guarded_if_it_pays", "guards_of", "overridden"]

_BRANCH_US = 15.0
"""µs ONNX Runtime takes to run nodes in a branch instead of the graph."""
_EACH_US = 0.2
"""µs to ask ONNX Runtime for one more input."""
_SHARE = 0.25
"""Of the budget, to predict what a guard gains."""
_WORTH = 0.9
"""Share of the time predicted without a guard above which the result does without."""


@dataclass(frozen=True)
class Guard:
    """One node that says whether the initializers ``names`` have their defaults, as ``result``."""

    names: tuple[str, ...]
    specs: tuple[TensorSpec, ...]
    result: str
    backend: Backend

    @cached_property
    def program(self) -> Program:
        return self.backend.lower_guard(self.specs)

    @property
    def type(self) -> OpType:
        """The type of its node: what it compares."""
        dtypes = tuple(s.dtype or DType.F32 for s in self.specs) * 2
        key = hashlib.sha256(",".join(d.short for d in dtypes).encode()).hexdigest()[:6]
        return OpType(f"Guard_{key}", dtypes, (DType.BOOL,))

    @property
    def function(self) -> Function:
        """Its body says "no", whatever is fed: then the original's nodes run."""
        inputs = tuple(f"x{i}" for i in range(2 * len(self.names)))
        no = Node("Constant", (), ("y",), {"value": np.array([False])})
        return Function(self.type.name, inputs, ("y",), (no,))

    def node(self, domain: str) -> Node:
        inputs = (*self.names, *map(reference_of, self.names))
        plan = {"plan": self.backend.encode(self.program)}
        name = f"tracea_{self.result.removeprefix('tracea:')}".replace(" ", "_")
        return Node(self.type.name, inputs, (self.result,), plan, domain, name)


def guards_of(model: Model, backend: Backend) -> tuple[Guard, ...]:
    """The guards of a model: several where one node cannot compare all its initializers."""
    every = [*model.guarded.items()]
    most = backend.most_guarded
    parts = [every[i : i + most] for i in range(0, len(every), most)]
    several = len(parts) > 1
    return tuple(
        Guard(
            tuple(name for name, _ in part),
            tuple(weight.spec for _, weight in part),
            f"{CONDITION} {i}" if several else CONDITION,
            backend,
        )
        for i, part in enumerate(parts)
    )


def condition_of(guards: Sequence[Guard], domain: str) -> list[Node]:
    """The nodes that compute :data:`CONDITION` from all guards."""
    nodes = [guard.node(domain) for guard in guards]
    for i in range(1, len(guards)):
        last = i == len(guards) - 1
        so_far = guards[0].result if i == 1 else f"{CONDITION} to {i - 1}"
        result = CONDITION if last else f"{CONDITION} to {i}"
        nodes.append(Node("And", (so_far, guards[i].result), (result,), name=f"tracea_and_{i}"))
    return nodes


def guarded_if_it_pays(
    model: Model,
    options: Options,
    symbols: Mapping[str, int],
    target: Target | None,
    deadline: Deadline | None = None,
) -> tuple[Model, Planner]:
    """The model with its overridable initializers guarded, if that is predicted to be faster, and
    its planner.  As it is where the ``deadline`` leaves no time to find out.
    """
    deadline = deadline or Deadline()
    plain = Planner(model.graph, options, symbols, target, deadline=deadline)
    if not model.overridable or not options.custom_ops:
        return model, plain
    guarded = load(model.path, guard=True)
    if not guarded.guarded or not all(map(guarded.graph.producer, guarded.graph.outputs)):
        return model, plain
    known = Planner(guarded.graph, options, symbols, target, plain.cost, deadline=deadline)
    read = sum(weight.nbytes for weight in guarded.guarded.values())
    asked = _BRANCH_US + _EACH_US * len(guarded.guarded)
    compared = 2 * read / plain.cost.machine.dram_gbytes * 1e-3 + asked
    try:
        with deadline.within(_SHARE * options.budget):
            pays = _us(known) + compared < _WORTH * _us(plain)
    except OutOfTime:
        deadline.tell("there was no time to see what constants instead of inputs would gain")
        return model, plain
    return (guarded, known) if pays else (model, plain)


def overridden(model: Model, inputs: Inputs) -> Inputs:
    """One more feed to verify a guarded model with: another value for its largest weight."""
    plain = next(iter(inputs.verification), None)
    sizes = {n: w.count for n, w in model.guarded.items() if w.dtype is DType.F32 and w.count}
    if plain is None or not sizes:
        return inputs
    name = max(sizes, key=sizes.__getitem__)
    default = np.asarray(model.guarded[name].array(), np.float32)
    other = np.where(default == 0, 0.5, default * 1.5).astype(np.float32)
    feed = {**inputs.verification[plain], name: other}
    added = {f"{plain}, {name} fed": feed}
    kept = {k: f for k, f in inputs.verification.items() if k not in inputs.spare}
    spare = {k: f for k, f in inputs.verification.items() if k in inputs.spare}
    return replace(inputs, verification={**kept, **added, **spare})


def _us(planner: Planner) -> float:
    """Predicted time of what the planner makes of its graph."""
    graph = planner.plan().graph
    return sum(planner.cost(graph, region) for region in graph.regions())
