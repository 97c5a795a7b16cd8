"""The region graph for other tools: networkx with plain attributes, Graphviz, JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import networkx as nx

if TYPE_CHECKING:
    from tracea_graph.ttg.graph import TileGraph

__all__ = ["to_dot", "to_json", "to_networkx"]


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
