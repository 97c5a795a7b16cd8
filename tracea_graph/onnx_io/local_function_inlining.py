"""Inline model-local functions, whose calls no rule could look into.

Exporters write modules of a model, or operators without a standard form, as such functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

import onnx.inliner
from onnx import FunctionProto, ModelProto, NodeProto
from onnx.helper import make_opsetid

from tracea_graph.errors import ModelError
from tracea_graph.onnx_io.node_conversion import OWN_DOMAINS, all_nodes, subgraphs_of
from tracea_graph.onnx_io.protobuf_wire import PayloadSpans

__all__ = ["inline_local_functions"]

_MOST_NODES = 1_000_000
"""Maximum number of nodes with all functions inlined, which shape inference and ONNX Runtime do
too: forty functions, each of which calls the next one twice, would keep them busy for years.
"""
_WITH_KERNELS = ("", "ai.onnx", "com.microsoft")
"""Domains in which ONNX Runtime has kernels, which it prefers to function bodies."""

_Key = tuple[str, str]


def inline_local_functions(skeleton: ModelProto, spans: PayloadSpans) -> None:
    """Replace calls of model-local functions by the functions' nodes, in place.

    ``spans`` are renumbered to match the new nodes.  These functions are not inlined: those of
    results of this tool, those of domains with kernels in ONNX Runtime, overloaded ones, and those
    that are written for another operator set than the model.  Models with training information
    keep all.  Raises ModelError if a function calls itself or gets more operands than it has, or
    if the graph would become too large.
    """
    functions = {(f.domain, f.name): f for f in skeleton.functions}
    overloaded = {(f.domain, f.name) for f in skeleton.functions if f.overload}
    calls = {key: [*map(_key, _nodes(function))] for key, function in functions.items()}
    order = _callees_first({key: [c for c in calls[key] if c in calls] for key in calls})
    suited = {key for key in order if _is_suited(functions[key], skeleton)}
    chosen = suited - overloaded
    if (count := _size(skeleton, calls, order)) > _MOST_NODES:
        raise ModelError(f"with its functions inlined, the model has {count:,} nodes")
    if not chosen or skeleton.training_info:
        return
    _check_calls(skeleton, {key: functions[key] for key in chosen})
    others = [f for f in skeleton.functions if (f.domain, f.name) not in chosen]
    given = ModelProto()
    given.CopyFrom(skeleton)
    given.ClearField("functions")
    given.functions.extend(functions[key] for key in chosen)
    _give_defaults(given)
    known = _versions(skeleton)
    for key in order:
        new = _versions(functions[key]) if key in chosen else {}
        given.opset_import.extend(make_opsetid(*one) for one in new.items() if one[0] not in known)
        known |= new
    constants = {skeleton.graph.node[i].output[0]: span for i, span in spans.constants.items()}
    skeleton.CopyFrom(onnx.inliner.inline_local_functions(given))
    skeleton.functions.extend(others)
    firsts = [next(iter(node.output), "") for node in skeleton.graph.node]
    spans.constants = {i: constants[v] for i, v in enumerate(firsts) if v in constants}


def _check_calls(model: ModelProto, functions: Mapping[_Key, FunctionProto]) -> None:
    """Raise ModelError if a call has more inputs or outputs than its function."""
    inner = [node for function in model.functions for node in _nodes(function)]
    for node in (*all_nodes(model.graph), *inner):
        if (function := functions.get(_key(node))) is None:
            continue
        for what in ("input", "output"):
            given, known = len(getattr(node, what)), len(getattr(function, what))
            if given > known:
                raise ModelError(
                    f"node {node.name or node.op_type!r} has {given} {what}s, but the function "
                    f"{function.name!r} of {function.domain!r} has {known}"
                )


def _give_defaults(model: ModelProto) -> None:
    """Set attributes that calls leave to their defaults, which onnx's inliner would ignore."""
    functions = {(f.domain, f.name): f for f in model.functions}
    inner = [node for function in functions.values() for node in _nodes(function)]
    for node in (*all_nodes(model.graph), *inner):
        if (function := functions.get(_key(node))) is not None:
            given = {attribute.name for attribute in node.attribute}
            node.attribute.extend(d for d in function.attribute_proto if d.name not in given)


def _key(node: NodeProto) -> _Key:
    return node.domain, node.op_type


def _nodes(function: FunctionProto) -> Iterator[NodeProto]:
    """Yield every node of a function, including those of subgraphs."""
    for node in function.node:
        yield node
        for body in subgraphs_of(node):
            yield from all_nodes(body)


def _callees_first(calls: Mapping[_Key, list[_Key]]) -> list[_Key]:
    """Return all functions, each after those it calls."""
    try:
        return [*TopologicalSorter(calls).static_order()]
    except CycleError as error:
        domain, name = error.args[1][0]
        raise ModelError(f"the model's function {name!r} of {domain!r} calls itself") from error


def _is_suited(function: FunctionProto, model: ModelProto) -> bool:
    """Return whether a function may be inlined, and the model has its operator sets."""
    if function.domain in _WITH_KERNELS or function.domain.startswith(OWN_DOMAINS):
        return False
    known, own = _versions(model), _versions(function)
    return all(known.get(domain, version) == version for domain, version in own.items())


def _versions(of: ModelProto | FunctionProto) -> dict[str, int]:
    """Return the operator sets of a model or function: domain to version."""
    return {("" if i.domain == "ai.onnx" else i.domain): i.version for i in of.opset_import}


def _size(skeleton: ModelProto, calls: Mapping[_Key, list[_Key]], order: list[_Key]) -> int:
    """Return the number of nodes of the graph with all functions inlined."""
    sizes: dict[_Key, int] = {}
    for key in order:
        sizes[key] = sum(sizes.get(callee, 1) for callee in calls[key])
    return sum(sizes.get(_key(node), 1) for node in all_nodes(skeleton.graph))
