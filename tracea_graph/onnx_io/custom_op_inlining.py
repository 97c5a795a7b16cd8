"""Custom-op nodes of a result: the nodes they replace, and inlining of their bodies.

Tools that know only standard operators cannot look into custom ops.  With bodies inlined, the
model has shapes, iteration spaces, and inputs that can be synthesized.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

from onnx import FunctionProto, ModelProto, NodeProto

from tracea_graph.onnx_io.imported_model import Model
from tracea_graph.onnx_io.initializer_guards import result_nodes
from tracea_graph.onnx_io.kernel_call_origins import decode_calls
from tracea_graph.onnx_io.node_conversion import OWN_DOMAINS, all_nodes, has_subgraph, subgraphs_of
from tracea_graph.onnx_io.protobuf_wire import PayloadSpans, Span
from tracea_graph.onnx_io.value_facts import attribute

__all__ = [
    "CustomOpOrigin",
    "custom_op_nodes",
    "custom_op_of_inlined",
    "inline_bodies",
    "is_tracea_node",
]

_SEPARATOR = "//"

Bodies = Mapping[tuple[str, str], FunctionProto]


@dataclass(frozen=True)
class CustomOpOrigin:
    """One custom-op node of an optimized model.

    * ``name``: name of the node or, if it has none, of its first output;
    * ``originals``: names of the nodes of the original model that it replaced;
    * ``rule``: the rewrite that replaced them;
    * ``plan``: the integers of its program;
    * ``call_originals``: names of the original nodes that each kernel call computes, if recorded.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    originals: tuple[str, ...]
    rule: str
    plan: tuple[int, ...] = ()
    call_originals: tuple[tuple[str, ...], ...] = ()


def custom_op_nodes(model: Model) -> tuple[CustomOpOrigin, ...]:
    """Return the custom-op nodes of a model that was loaded without inlining, in order."""
    nodes = (n for node in result_nodes(model.skeleton) for n in (node, *_inside(node)))
    return tuple(_call(node) for node in nodes if is_tracea_node(node))


def custom_op_of_inlined(name: str) -> str:
    """Return the custom-op node an inlined node or inner value came from; "" for other names."""
    return name.rpartition(_SEPARATOR)[0]


def inline_bodies(skeleton: ModelProto, spans: PayloadSpans, kept: Container[str] = ()) -> None:
    """Replace every custom-op node that has a straight-line body by that body, in place.

    Nodes of op types in ``kept`` are not replaced.  A node or value of a body is called
    ``CALL//own name``.  ``spans`` are renumbered to match the new nodes.
    """
    bodies: Bodies = {(f.domain, f.name): f for f in skeleton.functions}
    nodes: list[NodeProto] = []
    constants: dict[int, Span] = {}
    for index, node in enumerate(skeleton.graph.node):
        if index in spans.constants:
            constants[len(nodes)] = spans.constants[index]
        nodes.extend(_expanded(node, bodies, kept))
    copies = [_copy(node) for node in nodes]
    skeleton.graph.ClearField("node")
    skeleton.graph.node.extend(copies)
    spans.constants = constants


def _expanded(node: NodeProto, bodies: Bodies, kept: Container[str]) -> Iterator[NodeProto]:
    """Yield the body's nodes in place of a custom-op node, or a node, its subgraphs expanded."""
    body = bodies.get((node.domain, node.op_type))
    straight = body is not None and not any(map(has_subgraph, body.node))
    if body is not None and straight and is_tracea_node(node) and node.op_type not in kept:
        yield from _inlined(node, body)
        return
    if any(map(is_tracea_node, _inside(node))):
        node = _copy(node)
        for inner in subgraphs_of(node):
            nodes = [_copy(made) for one in inner.node for made in _expanded(one, bodies, kept)]
            inner.ClearField("node")
            inner.node.extend(nodes)
    yield node


def is_tracea_node(node: NodeProto) -> bool:
    """Return whether a node is a custom op of this tool."""
    return node.domain.startswith(OWN_DOMAINS)


def _inside(node: NodeProto) -> Iterator[NodeProto]:
    """Nodes of a node's subgraphs."""
    for body in subgraphs_of(node):
        yield from all_nodes(body)


def _call(node: NodeProto) -> CustomOpOrigin:
    said = {p.key: p.value for p in node.metadata_props}
    originals = tuple(said.get("tracea.nodes", "").split("\n")) if said else ()
    return CustomOpOrigin(
        _name(node), node.op_type, tuple(node.input), tuple(node.output),
        tuple(filter(None, originals)), said.get("tracea.rule", ""),
        tuple(attribute(node, "plan", ())), decode_calls(originals, said.get("tracea.calls", "")),
    )  # fmt: skip


def _name(node: NodeProto) -> str:
    return node.name or node.output[0]


def _inlined(node: NodeProto, body: FunctionProto) -> Iterator[NodeProto]:
    """Nodes of a body with the caller's values for its formal parameters."""
    prefix = f"{_name(node)}{_SEPARATOR}"
    actual = {"": ""} | dict(zip(body.input, node.input, strict=False))
    actual |= dict.fromkeys(body.input[len(node.input) :], "")
    actual |= {f: v for f, v in zip(body.output, node.output, strict=False) if v}
    for index, inner in enumerate(body.node):
        made = _copy(inner)
        made.name = f"{prefix}{inner.name or index}"
        for field in (made.input, made.output):
            field[:] = [actual.get(v, f"{prefix}{v}") for v in field]
        yield made


def _copy(node: NodeProto) -> NodeProto:
    made = NodeProto()
    made.CopyFrom(node)
    return made
