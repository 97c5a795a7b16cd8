"""Guards: overridable initializers that are treated as constants unless the caller feeds them.

    y = If(every guarded initializer has the bytes of its default)
            { the nodes optimized with constants }
        else
            { the original's nodes }

The guarded initializers stay inputs.  The comparison is a stateless operator of the library, which
makes it safe in concurrent runs.  Without the library, its ONNX body returns false, which is
always correct: ONNX Runtime then runs the original's nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from tracea_graph.ir import DType, Weight
from tracea_graph.onnx_io.imported_model import Model
from tracea_graph.onnx_io.node_conversion import (
    all_nodes,
    is_random,
    rename_value_info,
    rename_values,
    subgraphs_of,
)
from tracea_graph.onnx_io.protobuf_wire import PayloadSpans

__all__ = [
    "BRANCHES",
    "CONDITION",
    "constants_of_guard",
    "default_constant_name",
    "guardable_initializers",
    "is_guarded",
    "nodes_run_each_time",
    "remove_guard",
    "result_nodes",
    "wrap_in_guard",
]  # fmt: skip

CONDITION = "tracea:unchanged"
"""Name of the value that is true if every guarded initializer has its default."""
BRANCHES = "tracea_guard"
"""Name of the node that holds both branches."""
_REFERENCE, _UNCHANGED, _OVERRIDDEN = ":default", ":unchanged", ":overridden"
"""Suffixes of the names of defaults to compare with, and of values inside the branches."""
_UNCOMPARED = frozenset(
    (DType.STR, DType.C64, DType.C128, *(t for t in DType if t.size < 1), *(
        t for t in DType if t.short.startswith("f8")))
)  # fmt: skip
"""Element types that programs do not support."""


def default_constant_name(name: str) -> str:
    """Return the name of the constant with the default of a guarded initializer."""
    return f"{name}{_REFERENCE}"


def guardable_initializers(
    skeleton: ModelProto, defaults: Mapping[str, Weight], captured: Iterable[str]
) -> dict[str, Weight]:
    """Return the initializers among ``defaults`` that a guard can compare.

    An initializer qualifies if it is read and has a known size.  None qualifies in these cases: an
    output has no writer or is not a tensor, so that the graph cannot become two branches; names
    collide with those of a guard; the graph draws random numbers, so that results cannot be
    compared with the original's.  ``captured`` are values that subgraphs read.
    """
    graph = skeleton.graph
    written = {v for node in graph.node for v in node.output}
    names = written | {t.name for t in graph.initializer} | {v.name for v in graph.input}
    taken = any(name.endswith((_REFERENCE, _UNCHANGED, _OVERRIDDEN)) for name in names)
    outputs = all(v.name in written and v.type.HasField("tensor_type") for v in graph.output)
    if taken or not outputs or skeleton.training_info or any(map(is_random, all_nodes(graph))):
        return {}
    read = {v for node in graph.node for v in node.input} | {*captured}
    declared = {v.name: v for v in graph.input}
    return {
        name: weight
        for name, weight in defaults.items()
        if name in read and weight.dtype not in _UNCOMPARED and _fixed(declared[name], weight)
    }


def _fixed(value: ValueInfoProto, weight: Weight) -> bool:
    """Whether any value fed for the weight has its type and sizes."""
    tensor = value.type.tensor_type
    dims = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim)
    return (
        value.type.HasField("tensor_type")
        and tensor.HasField("shape")
        and (tensor.elem_type, dims) == (weight.dtype.onnx, weight.shape)
    )


def constants_of_guard(model: Model) -> dict[str, Weight]:
    """Return the constants that a guarded model stores besides those of its rewritten nodes.

    These are the defaults that initializers are compared with, and the constants that the original
    nodes read and that no caller can override.
    """
    fed = {*model.inputs, *model.overridable}
    read = {v for node in all_nodes(model.skeleton.graph) for v in node.input}
    references = {
        default_constant_name(name): replace(weight, name=default_constant_name(name))
        for name, weight in model.guarded.items()
    }
    return references | {n: w for n, w in model.stored.items() if n in read and n not in fed}


def wrap_in_guard(proto: ModelProto, model: Model, condition: Sequence[NodeProto]) -> None:
    """Put the nodes of ``proto`` into one branch and those of the original into the other.

    ``condition`` computes :data:`CONDITION` at graph level.
    """
    graph, source = proto.graph, model.skeleton.graph
    outputs = [v.name for v in graph.output]
    guarded = {name: default_constant_name(name) for name in model.guarded}
    own = {name: f"{name}{_UNCHANGED}" for name in outputs}
    kept = [n for n in source.node if model.stored.keys().isdisjoint(n.output)]
    other = {v: f"{v}{_OVERRIDDEN}" for n in kept for v in n.output if v}
    branches = {
        "then_branch": _branch("unchanged", graph.node, graph, guarded | own),
        "else_branch": _branch("overridden", kept, source, other),
    }
    made = helper.make_node("If", [CONDITION], outputs, BRANCHES, **branches)
    for field in ("node", "value_info"):
        graph.ClearField(field)
    graph.node.extend([*condition, made])


def remove_guard(skeleton: ModelProto, spans: PayloadSpans) -> bool:
    """Reduce a guarded model to the original's nodes, in place; return False if it has no guard.

    Initializers that only the removed branch reads are removed too.  ``spans`` say where in the
    file each initializer lies, and are renumbered.
    """
    guard = _guard(skeleton.graph)
    if guard is None:
        return False
    (branch,) = (a.g for a in guard.attribute if a.name == "else_branch")
    written = [v for node in branch.node for v in node.output if v]
    names = {v: v.removesuffix(_OVERRIDDEN) for v in written}
    nodes = [rename_values(node, names) for node in branch.node]
    infos = [rename_value_info(v, names) for v in branch.value_info]
    graph = skeleton.graph
    for field, items in (("node", nodes), ("value_info", infos)):
        graph.ClearField(field)
        getattr(graph, field).extend(items)
    gone = {*names.values()}
    kept = [
        i for i, t in enumerate(graph.initializer)
        if t.name not in gone and not t.name.endswith(_REFERENCE)
    ]  # fmt: skip
    at = spans.initializers
    spans.initializers = {new: at[old] for new, old in enumerate(kept) if old in at}
    rest = GraphProto()
    rest.initializer.extend(graph.initializer[i] for i in kept)
    graph.ClearField("initializer")
    graph.initializer.extend(rest.initializer)
    return True


def is_guarded(model: Model) -> bool:
    """Whether a model contains a guard, the ``If`` that :func:`wrap_in_guard` adds."""
    return _guard(model.skeleton.graph) is not None


def result_nodes(skeleton: ModelProto) -> tuple[NodeProto, ...]:
    """Return the nodes of a model; for a guarded one, the guard and the optimized branch."""
    guard = _guard(skeleton.graph)
    if guard is None:
        return tuple(skeleton.graph.node)
    (branch,) = (a.g for a in guard.attribute if a.name == "then_branch")
    return (*(n for n in skeleton.graph.node if n is not guard), *branch.node)


def nodes_run_each_time(skeleton: ModelProto) -> tuple[NodeProto, ...]:
    """Return the :func:`result_nodes` of a model, except those that depend on constants only."""
    constant = {t.name for t in skeleton.graph.initializer} - {
        v.name for v in skeleton.graph.input
    }
    found = []
    for node in result_nodes(skeleton):
        if constant.issuperset(filter(None, node.input)) and not any(subgraphs_of(node)):
            constant.update(node.output)
        else:
            found.append(node)
    return tuple(found)


def _guard(graph: GraphProto) -> NodeProto | None:
    found = (n for n in graph.node if n.op_type == "If" and [*n.input] == [CONDITION])
    return next(found, None)


def _branch(
    name: str, nodes: Iterable[NodeProto], source: GraphProto, names: Mapping[str, str]
) -> GraphProto:
    """Subgraph of the nodes, returning the outputs of ``source``; values are renamed."""
    branch = GraphProto(name=name)
    branch.node.extend(rename_values(node, names) for node in nodes)
    written = {v for node in branch.node for v in node.output}
    branch.output.extend(rename_value_info(v, names) for v in source.output)
    # ONNX Runtime trusts the types declared by a branch, unlike those of a graph
    for value in branch.output:
        value.type.tensor_type.ClearField("shape")
    infos = (rename_value_info(v, names) for v in source.value_info)
    branch.value_info.extend(v for v in infos if v.name in written)
    return branch
