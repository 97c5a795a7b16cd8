"""The region graph for other tools: networkx with plain attributes, Graphviz, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import networkx as nx

if TYPE_CHECKING:
    from tracea_graph.ttg.graph import TileGraph

__all__ = ["region_graph", "to_dot", "to_json", "to_networkx"]


def region_graph(graph: TileGraph, source: Callable[[str], str]) -> nx.MultiDiGraph:
    """A node per region, graph input, output and constant that is read; an edge per use.

    ``source`` names the node a value comes from.  Edges are keyed ``(value, operand)``.
    """
    view = nx.MultiDiGraph(name=graph.name)
    view.add_nodes_from((f"input:{v}", {"kind": "input", "value": v}) for v in graph.inputs)
    regions = graph.regions()
    view.add_nodes_from((r.id, {"kind": "region", "region": r}) for r in regions)
    view.add_nodes_from((f"output:{v}", {"kind": "output", "value": v}) for v in graph.outputs)
    uses = [(v, r.id, i) for r in regions for i, v in enumerate(r.operands) if v]
    uses += [(v, r.id, -1) for r in regions for v in r.captures]
    uses += [(v, f"output:{v}", 0) for v in graph.outputs]
    for value, reader, operand in uses:
        origin = source(value)
        if origin.startswith("const:"):
            view.add_node(origin, kind="const", value=value)
        view.add_edge(origin, reader, key=(value, operand), value=value, operand=operand)
    return view


def to_networkx(graph: TileGraph) -> nx.MultiDiGraph:
    """Nodes with ``kind``, ``op``, ``rule``, ``nodes``; edges with ``value`` and ``spec``."""
    plain = nx.MultiDiGraph(name=graph.name)
    for name, data in graph.nx.nodes(data=True):
        region = graph.region(name)
        said = {"kind": data["kind"]}
        if region is None:
            said |= {"value": data["value"], "spec": str(graph.spec(data["value"]))}
        else:
            originals = "\n".join(n.name or n.op for n in region.nodes)
            said |= {"op": region.op, "rule": region.rule, "nodes": originals}
        plain.add_node(name, **said)
    for source, target, data in graph.nx.edges(data=True):
        value, operand = data["value"], data["operand"]
        key = f"{value}/{operand}"
        plain.add_edge(
            source, target, key=key, value=value, operand=operand, spec=str(graph.spec(value))
        )
    return plain


def to_json(graph: TileGraph) -> str:
    """networkx's node-link form."""
    return json.dumps(nx.node_link_data(to_networkx(graph), edges="links"), indent=1)


def to_dot(graph: TileGraph) -> str:
    """One box per region, an oval per input and output; constants are left out."""
    plain = to_networkx(graph)
    lines = [f"digraph {_quoted(graph.name or 'graph')} {{", "  node [shape=box];"]
    for name, data in plain.nodes(data=True):
        if data["kind"] == "const":
            continue
        label = data.get("op") or data["value"]
        form = "" if data["kind"] == "region" else ", shape=oval"
        lines.append(f"  {_quoted(name)} [label={_quoted(label)}{form}];")
    for source, target, data in plain.edges(data=True):
        if plain.nodes[source]["kind"] != "const":
            label = _quoted(data["spec"])
            lines.append(f"  {_quoted(source)} -> {_quoted(target)} [label={label}];")
    return "\n".join([*lines, "}\n"])


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
