"""Branches: the nodes of ``If`` in the graph around it, where every step and rule sees them.

    y = If(c) { f(x, w) } else { g(x) }
        ->   x1, x2 = Identity(x), Identity(x)
             t, e = f(x1, w), g(x2)
             y = If(c) { t } else { e }

Import flattens branches so, and export sinks into a branch what only that branch needs, in
whatever form rules left it.  What else depends on a branch's values is computed in any case, which
is right too: only operators without side effects are moved.  The entries, one for each value and
branch, keep rules from fusing what runs always with what one branch runs.  Constants of a branch
become those of the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from onnx import GraphProto, ModelProto, NodeProto, helper

from tracea_graph.onnx_io.nodes import (
    OWN_DOMAINS,
    bodies_of,
    captures_of,
    draws,
    every_node,
    renamed,
    renamed_info,
    topological,
)

__all__ = ["flatten", "is_entry", "is_flat", "live_entries", "sink"]

_ENTRY, _FLAT = "tracea:entry ", "tracea:flat "
"""Beginnings of the names of entries, and of branches whose nodes are in the graph; both end with
the number of the ``If``.
"""
_SEQUENCES = ("Sequence", "Optional")


def is_entry(name: str) -> bool:
    """Return whether a node of this name is an entry of a branch."""
    return name.startswith(_ENTRY)


def live_entries(nodes: Iterable[NodeProto]) -> frozenset[str]:
    """Return the names of the entries whose ``If`` is still among the nodes."""
    nodes = [*nodes]
    numbers = {n for node in nodes for body in bodies_of(node) if (n := _number(body))}
    entries = (n.name for n in nodes if is_entry(n.name))
    return frozenset(e for e in entries if e.removeprefix(_ENTRY) in numbers)


def flatten(model: ModelProto) -> bool:
    """Move the nodes of branches into the graph, in place; return whether any were moved.

    Branches that draw random numbers or hold sequences stay, and so do results of this tool and
    models for training.
    """
    nodes = [*every_node(model.graph)]
    if model.training_info or any(n.domain.startswith(OWN_DOMAINS) for n in nodes):
        return False
    flattener = _Flattener(model.graph)
    for index in range(len(model.graph.node)):
        flattener.open(index)
    return flattener.count > 0


def is_flat(body: GraphProto) -> bool:
    """Return whether the nodes of a branch are in the graph around it."""
    return bool(_number(body))


def _number(body: GraphProto) -> str:
    """Return the number of a flattened branch's ``If``; empty for other subgraphs."""
    return body.name.removeprefix(_FLAT) if body.name.startswith(_FLAT) else ""


@dataclass
class _Flattener:
    """State of flattening: the names in use, and the values that are constants."""

    graph: GraphProto
    count: int = 0
    taken: set[str] = field(default_factory=set)
    constants: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        graph = self.graph
        self.taken = {v.name for v in (*graph.input, *graph.output)}
        self.taken |= {v for node in graph.node for v in node.output}
        self.taken |= {v for node in every_node(graph) for v in _local_names(node)}
        fed = {v.name for v in graph.input}
        self.constants = {t.name for t in graph.initializer} - fed
        self.taken |= {t.name for t in graph.initializer}
        self.constants |= {n.output[0] for n in graph.node if n.op_type == "Constant"}

    def fresh(self, stem: str, suffix: str = "") -> str:
        name = stem if stem not in self.taken else f"{stem}{suffix}"
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def open(self, index: int) -> None:
        """Flatten the branches of a node of the graph, if it is an ``If`` that allows it."""
        node = self.graph.node[index]
        if node.op_type != "If" or node.domain not in ("", "ai.onnx") or not _is_movable(node):
            return
        self.count += 1
        number, first = str(self.count), len(self.graph.node)
        moved: list[NodeProto] = []
        for attribute in node.attribute:
            if attribute.HasField("g"):
                moved += self._moved(attribute.g, f":{attribute.name.split('_')[0]}", number)
        self.graph.node.extend(moved)
        for inner in range(first, len(self.graph.node)):
            self.open(inner)

    def _moved(self, body: GraphProto, suffix: str, number: str) -> list[NodeProto]:
        """Return a branch's nodes for the graph, and let the branch return their results."""
        own = [t.name for t in body.initializer]
        own += [v for n in body.node for v in n.output if v]
        names = {v: self.fresh(v, suffix) for v in own}
        for tensor in body.initializer:
            made = self.graph.initializer.add()
            made.CopyFrom(tensor)
            made.name = names[tensor.name]
        constant = [n.output[0] for n in body.node if n.op_type == "Constant"]
        constant += [t.name for t in body.initializer]
        self.constants |= {names[v] for v in constant}
        entries: list[NodeProto] = []
        for value in _reads(body):
            if value not in names and value not in self.constants:
                names[value] = self.fresh(f"{value}{suffix}")
                entry = helper.make_node("Identity", [value], [names[value]], _ENTRY + number)
                entries.append(entry)
        moved = [renamed(n, names) for n in body.node]
        self.graph.value_info.extend(renamed_info(v, names) for v in body.value_info)
        flat = GraphProto(name=_FLAT + number)
        for output in body.output:
            value = names.get(output.name, output.name)
            name = self.fresh(f"{value}:out")
            flat.node.append(helper.make_node("Identity", [value], [name]))
            flat.output.append(renamed_info(output, {output.name: name}))
        body.CopyFrom(flat)
        return [*entries, *moved]


def _local_names(node: NodeProto) -> Iterator[str]:
    """Names that subgraphs of other operators than ``If`` define."""
    if node.op_type == "If":
        return
    for body in bodies_of(node):
        yield from (v.name for v in body.input)
        yield from (t.name for t in body.initializer)
        yield from (v for inner in every_node(body) for v in inner.output)


def _is_movable(node: NodeProto) -> bool:
    """Whether all that an ``If`` does may be done by nodes of the graph."""
    bodies = [*bodies_of(node)]
    for body in bodies:
        if body.sparse_initializer or not body.output or body.input or _number(body):
            return False
        if not all(v.type.HasField("tensor_type") for v in body.output):
            return False
    inner = [n for body in bodies for n in every_node(body)]
    return not any(draws(n) or n.op_type.startswith(_SEQUENCES) for n in inner)


def _reads(body: GraphProto) -> list[str]:
    """Values that a branch reads or returns, in order."""
    found: dict[str, None] = {}
    for node in body.node:
        certain, possible = captures_of(node)
        found |= dict.fromkeys((*node.input, *sorted(certain | possible)))
    found |= dict.fromkeys(v.name for v in body.output)
    found.pop("", None)
    return [*found]


# ---- export ----------------------------------------------------------------------------


def sink(graph: GraphProto) -> None:
    """Move what only one branch needs back into it, in place; ``graph`` is sorted."""
    nodes = [*graph.node]
    if not any(_number(body) for node in nodes for body in bodies_of(node)):
        return
    held = _Nodes({i: _copy(node) for i, node in enumerate(nodes)}, {v.name for v in graph.output})
    for index in range(len(nodes)):
        if index in held.nodes:
            held.close(index)
    kept = [*held.nodes.values()]
    order = topological([_all_reads(n) for n in kept], [[*n.output] for n in kept])
    graph.ClearField("node")
    graph.node.extend(kept[i] for i in order)
    alive = {v for n in kept for v in (*n.input, *n.output)}
    infos = [v for v in graph.value_info if v.name in alive]
    graph.ClearField("value_info")
    graph.value_info.extend(infos)


@dataclass
class _Nodes:
    """The nodes of a graph by position, without those that were sunk already."""

    nodes: dict[int, NodeProto]
    outputs: Set[str]

    def close(self, index: int) -> None:
        """Sink what the branches of a flattened ``If`` need."""
        node = self.nodes[index]
        bodies = [body for body in bodies_of(node) if _number(body)]
        wanted = [[n.input[0] for n in body.node] for body in bodies]
        for at, body in enumerate(bodies):
            others = {v for i, values in enumerate(wanted) if i != at for v in values}
            self._fill(body, wanted[at], index, others)

    def _fill(self, body: GraphProto, wanted: Sequence[str], index: int, others: Set[str]) -> None:
        writers = {v: i for i, node in self.nodes.items() for v in node.output if v}
        inside, entries = self._needed(wanted, writers)
        inside = self._only_here(inside, index, self.outputs | others)
        names = {e.output[0]: e.input[0] for e in map(self.nodes.__getitem__, entries)}
        flat = GraphProto(name=body.name.removeprefix(_FLAT))
        flat.node.extend(renamed(self.nodes[i], names) for i in sorted(inside))
        written = {v for i in inside for v in self.nodes[i].output}
        for value, given in zip(wanted, body.output, strict=True):
            if value in written:
                written.remove(value)  # it is returned once
                flat.output.append(renamed_info(given, {given.name: value}))
            else:
                source = names.get(value, value)
                flat.node.append(helper.make_node("Identity", [source], [given.name]))
                flat.output.append(given)
        body.CopyFrom(flat)
        for i in inside:
            del self.nodes[i]
        read = {v for node in self.nodes.values() for v in _all_reads(node)}
        for i in entries:
            if self.nodes[i].output[0] not in read:
                del self.nodes[i]

    def _needed(
        self, wanted: Iterable[str], writers: Mapping[str, int]
    ) -> tuple[set[int], set[int]]:
        """Return the nodes behind values that depend on an entry, and the entries."""
        entries: set[int] = set()
        depends: dict[int, bool] = {}
        waiting = [writers[v] for v in wanted if v in writers]
        while waiting:
            i = waiting[-1]
            sources = {writers[v] for v in _all_reads(self.nodes[i]) if v in writers}
            if is_entry(self.nodes[i].name):
                entries.add(i)
                depends[i] = True
            elif unknown := [s for s in sources if s not in depends]:
                waiting += unknown
                continue
            else:
                depends[i] = any(depends[s] for s in sources)
            waiting.pop()
        return {i for i, does in depends.items() if does} - entries, entries

    def _only_here(self, inside: set[int], index: int, outputs: Set[str]) -> set[int]:
        """Return the nodes whose results nothing else reads."""
        while True:
            read = {
                v
                for i, node in self.nodes.items()
                if i not in inside and i != index
                for v in _all_reads(node)
            }
            gone = {i for i in inside if not (read | outputs).isdisjoint(self.nodes[i].output)}
            if not gone:
                return inside
            inside = inside - gone


def _all_reads(node: NodeProto) -> list[str]:
    certain, possible = captures_of(node)
    return [v for v in (*node.input, *certain, *possible) if v]


def _copy(node: NodeProto) -> NodeProto:
    made = NodeProto()
    made.CopyFrom(node)
    return made
