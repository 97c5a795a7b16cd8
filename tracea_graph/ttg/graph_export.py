"""Export of a region graph (:attr:`TileGraph.nx`) to plain networkx, Graphviz and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable

import networkx as nx

from tracea_graph.ir import TensorSpec
from tracea_graph.ttg.region import Region

__all__ = ["to_dot", "to_json", "to_networkx"]

Spec = Callable[[str], TensorSpec]
"""Returns what is known of a value."""


def to_networkx(graph: nx.MultiDiGraph, spec: Spec) -> nx.MultiDiGraph:
    """Return a copy with plain attributes.

    Nodes have ``kind``, ``op``, ``rule`` and ``nodes``; edges have ``value`` and ``spec``.
    """
    plain = nx.MultiDiGraph(name=graph.name)
    for name, data in graph.nodes(data=True):
        region: Region | None = data.get("region")
        said = {"kind": data["kind"]}
        if region is None:
            said |= {"value": data["value"], "spec": str(spec(data["value"]))}
        else:
            originals = "\n".join(n.name or n.op for n in region.nodes)
            said |= {"op": region.op, "rule": region.rule, "nodes": originals}
        plain.add_node(name, **said)
    for source, target, data in graph.edges(data=True):
        value, operand = data["value"], data["operand"]
        key = f"{value}/{operand}"
        plain.add_edge(
            source, target, key=key, value=value, operand=operand, spec=str(spec(value))
        )
    return plain


def to_json(graph: nx.MultiDiGraph, spec: Spec) -> str:
    """Return networkx's node-link JSON."""
    return json.dumps(nx.node_link_data(to_networkx(graph, spec), edges="links"), indent=1)


def to_dot(graph: nx.MultiDiGraph, spec: Spec) -> str:
    """Return Graphviz text: a box per region, an oval per input and output, no constants."""
    plain = to_networkx(graph, spec)
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
