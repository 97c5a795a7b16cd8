"""Moving the nodes of branches and loop bodies into the graph, where every rule sees them.

    y = If(c) { f(x, w) } else { g(x) }
        ->   x1, x2 = Identity(x), Identity(x)
             t, e = f(x1, w), g(x2)
             y = If(c) { t } else { e }

Import flattens branches this way.  Export moves nodes that only one branch needs back into that
branch, in whatever form the rules left them.  Other nodes that depend on a branch's values run in
any case, which is correct too: only operators without side effects are moved.  The entries (x1,
x2), one for each value and branch, keep rules from fusing nodes of one branch with nodes that
always run.  Constants of a branch become constants of the graph.

    y = Loop(n, c, x) { i, c, h -> f(h, w) }
        ->   h = LoopValue()
             t = f(h, w)
             y = Loop(n, c, x) { i, c, h -> t }

The bodies of ``Loop`` and ``Scan`` are flattened too.  An input of an iteration has no value in
the graph: it becomes the result of a ``LoopValue``, which no rule knows, and all nodes that depend
on it move back into the body.  A value that every iteration passes on unchanged becomes an outer
value first.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from tracea_graph.errors import GraphError
from tracea_graph.ir import LOOP_VALUE
from tracea_graph.onnx_io.node_conversion import (
    OWN_DOMAINS,
    all_nodes,
    captures_of,
    is_random,
    rename_reads,
    rename_value_info,
    rename_values,
    subgraphs_of,
    topological_node_order,
)

__all__ = [
    "flatten_subgraphs",
    "has_loops",
    "is_flat",
    "is_subgraph_entry",
    "iterating_loops_by_value",
    "live_subgraph_entries",
    "sink_into_subgraphs",
]

_ENTRY, _FLAT = "tracea:entry ", "tracea:flat "
"""Prefixes of the names of entries, and of branches whose nodes are in the graph; the number of
the ``If`` follows.
"""
_SEQUENCES = ("Sequence", "Optional")
_MAY_BE_SEQUENCES = frozenset({"Identity", "If", "Loop", "Scan", "SplitToSequence"})
_LOOPS: Mapping[str, int] = MappingProxyType({"Loop": 2, "Scan": 0})
"""Operators with a loop body, and how many operands come before the values it carries."""
_LOOP_DOMAIN, _LOOP_VALUE = LOOP_VALUE
_HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def is_subgraph_entry(name: str) -> bool:
    """Return whether a node of this name is an entry of a flattened branch or loop body."""
    return name.startswith(_ENTRY)


def live_subgraph_entries(nodes: Iterable[NodeProto]) -> frozenset[str]:
    """Return the names of entries whose ``If``, loop or scan is still among the nodes."""
    nodes = [*nodes]
    numbers = {n for node in nodes for body in subgraphs_of(node) if (n := _number(body))}
    entries = (n.name for n in nodes if is_subgraph_entry(n.name))
    return frozenset(e for e in entries if e.removeprefix(_ENTRY) in numbers)


def has_loops(graph: GraphProto) -> bool:
    """Return whether a graph has loops whose bodies :func:`flatten_subgraphs` can move."""
    return any(n.op_type in _LOOPS and _is_movable(n) for n in graph.node)


def iterating_loops_by_value(nodes: Iterable[NodeProto]) -> dict[str, frozenset[str]]:
    """Return, by value, the loops on whose iteration the value depends, if there are any.

    ``nodes`` are in topological order.
    """
    found: dict[str, frozenset[str]] = {}
    for node in nodes:
        inside = frozenset[str]().union(*(found.get(v, ()) for v in _all_reads(node)))
        if node.op_type == _LOOP_VALUE:
            inside |= {node.name.removeprefix(_ENTRY)}
        inside -= {_number(body) for body in subgraphs_of(node)}
        if inside:
            found |= dict.fromkeys(node.output, inside)
    return found


def flatten_subgraphs(model: ModelProto, kept: Container[str] | None = None) -> bool:
    """Move the nodes of branches into the graph, in place; return whether any were moved.

    The nodes of loop bodies are moved too, except for loops whose first output is in ``kept``; if
    ``kept`` is None, no loop is flattened.  Bodies that draw random numbers or hold sequences are
    not flattened.  Results of this tool and models for training are not changed.  A model may be
    flattened again, after its loops were unrolled.
    """
    nodes = [*all_nodes(model.graph)]
    if model.training_info or any(n.domain.startswith(OWN_DOMAINS) for n in nodes):
        return False
    numbers = [_number(body) for node in nodes for body in subgraphs_of(node)]
    earlier = max((int(n) for n in numbers if n.isdecimal()), default=0)
    flattener = _Flattener(model.graph, kept, earlier)
    for index in range(len(model.graph.node)):
        flattener.open(index)
    known = {one.domain for one in model.opset_import}
    if any(n.op_type == _LOOP_VALUE for n in model.graph.node) and _LOOP_DOMAIN not in known:
        model.opset_import.append(helper.make_opsetid(_LOOP_DOMAIN, 1))
    return flattener.count > earlier


def is_flat(body: GraphProto) -> bool:
    """Return whether a body is flattened: its nodes are in the graph around it."""
    return bool(_number(body))


def _number(body: GraphProto) -> str:
    """Return the number of a flattened branch's ``If``; empty for other subgraphs."""
    return body.name.removeprefix(_FLAT) if body.name.startswith(_FLAT) else ""


@dataclass
class _Flattener:
    """State of flattening: the names in use, and the values that are constants."""

    graph: GraphProto
    kept: Container[str] | None
    count: int = 0
    taken: set[str] = field(default_factory=set)
    constants: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        graph = self.graph
        self.taken = {v.name for v in (*graph.input, *graph.output)}
        self.taken |= {v for node in graph.node for v in node.output}
        self.taken |= {v for node in all_nodes(graph) for v in _local_names(node)}
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
        """Flatten the bodies of a node of the graph, if the node allows it."""
        node = self.graph.node[index]
        loop = node.op_type in _LOOPS
        if not _is_movable(node) or (loop and not self._opens(node)):
            return
        if loop:
            self._pass_invariants(node)
        self.count += 1
        number, first = str(self.count), len(self.graph.node)
        moved: list[NodeProto] = []
        for attribute in node.attribute:
            if attribute.HasField("g"):
                suffix = attribute.name.split("_")[0]
                moved += self._moved(attribute.g, f":{suffix}", number)
        self.graph.node.extend(moved)
        for inner in range(first, len(self.graph.node)):
            self.open(inner)

    def _opens(self, node: NodeProto) -> bool:
        return self.kept is not None and next(filter(None, node.output), "") not in self.kept

    def _pass_invariants(self, node: NodeProto) -> None:
        """Turn values that a loop carries but never changes into outer values of its body."""
        (body,) = subgraphs_of(node)
        first = _LOOPS[node.op_type]
        count = _carried(node, body)
        same = {n.output[0]: n.input[0] for n in body.node if n.op_type == "Identity"}
        unchanged = []
        for i in range(count):
            value, given = body.output[i + first // 2].name, body.input[i + first].name
            while value != given and value in same:
                value = same[value]
            if value == given and node.input[first + i]:
                unchanged.append(i)
        outer = {body.input[first + i].name: node.input[first + i] for i in unchanged}
        hidden = {v for n in body.node for v in n.output} | {t.name for t in body.initializer}
        for value in {*outer.values()} & (hidden | {v.name for v in body.input}):
            outer = {old: new for old, new in outer.items() if new != value}
        for i in reversed(unchanged):
            if body.input[first + i].name not in outer:
                continue
            source = node.input[first + i]
            if i < len(node.output) and node.output[i]:
                made = helper.make_node("Identity", [source], [node.output[i]])
                self.graph.node.append(made)
            del body.input[first + i], body.output[first // 2 + i], node.input[first + i]
            if i < len(node.output):
                del node.output[i]
        rename_reads(body, outer)

    def _moved(self, body: GraphProto, suffix: str, number: str) -> list[NodeProto]:
        """Return a body's nodes for the graph, and let the body return their results."""
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
        flat = GraphProto(name=_FLAT + number)
        for given in body.input:
            names[given.name] = name = self.fresh(given.name, suffix)
            made_info = rename_value_info(given, names)
            flat.input.append(made_info)
            entries.append(
                helper.make_node(_LOOP_VALUE, [], [name], _ENTRY + number, domain=_LOOP_DOMAIN)
            )
            self.graph.value_info.append(_apart(made_info, number))
        for value in _reads(body):
            if value not in names and value not in self.constants:
                names[value] = self.fresh(f"{value}{suffix}")
                entry = helper.make_node("Identity", [value], [names[value]], _ENTRY + number)
                entries.append(entry)
        moved = [rename_values(n, names) for n in body.node]
        self.graph.value_info.extend(rename_value_info(v, names) for v in body.value_info)
        for output in body.output:
            value = names.get(output.name, output.name)
            name = self.fresh(f"{value}:out")
            flat.node.append(helper.make_node("Identity", [value], [name]))
            flat.output.append(rename_value_info(output, {output.name: name}))
        body.CopyFrom(flat)
        return [*entries, *moved]


def _carried(node: NodeProto, body: GraphProto) -> int:
    """Return how many values a loop carries from one iteration to the next."""
    scanned = [a.i for a in node.attribute if a.name == "num_scan_inputs"]
    return len(body.input) - (scanned[0] if scanned else _LOOPS[node.op_type])


def _apart(info: ValueInfoProto, number: str) -> ValueInfoProto:
    """Return a declaration whose symbols are no other's: each iteration may have other sizes."""
    made = ValueInfoProto()
    made.CopyFrom(info)
    for i, dim in enumerate(made.type.tensor_type.shape.dim):
        if not dim.HasField("dim_value"):
            dim.dim_param = f"{info.name}:{number}:{i}"
    return made


def _local_names(node: NodeProto) -> Iterator[str]:
    """Names that subgraphs of other operators than ``If`` define."""
    if node.op_type == "If":
        return
    for body in subgraphs_of(node):
        yield from (v.name for v in body.input)
        yield from (t.name for t in body.initializer)
        yield from (v for inner in all_nodes(body) for v in inner.output)


def _is_movable(node: NodeProto) -> bool:
    """Whether all that an ``If`` or a loop does may be done by nodes of the graph."""
    loop = node.op_type in _LOOPS
    if not (loop or node.op_type == "If") or node.domain not in ("", "ai.onnx"):
        return False
    bodies = [*subgraphs_of(node)]
    for body in bodies:
        if body.sparse_initializer or not body.output or _number(body):
            return False
        tensors = all(v.type.HasField("tensor_type") for v in (*body.output, *body.input))
        if not (tensors or _makes_tensors(body)) or (body.input and not loop):
            return False
        given = {v.type.tensor_type.elem_type for v in body.input}
        if not given.isdisjoint((*_HALVES, TensorProto.UNDEFINED)):
            return False
    inner = [n for body in bodies for n in all_nodes(body)]
    return not any(is_random(n) or n.op_type.startswith(_SEQUENCES) for n in inner)


def _makes_tensors(body: GraphProto) -> bool:
    """Whether a branch without declared types, as in model-local functions, returns tensors."""
    made = {v: n.op_type for n in body.node for v in n.output}
    ops = {made.get(v.name, "Identity") for v in body.output}
    typed = any(v.type.WhichOneof("value") for v in (*body.output, *body.input))
    return not typed and not body.input and ops.isdisjoint(_MAY_BE_SEQUENCES)


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


def sink_into_subgraphs(model: ModelProto) -> None:
    """Move nodes that only one branch or loop body needs back into it, in place.

    The nodes of ``model`` are in topological order.  Raises GraphError if a value that depends on
    a loop's iteration is read outside the loop.
    """
    graph, nodes = model.graph, [*model.graph.node]
    imports = [one for one in model.opset_import if one.domain != _LOOP_DOMAIN]
    model.ClearField("opset_import")
    model.opset_import.extend(imports)
    if not any(_number(body) for node in nodes for body in subgraphs_of(node)):
        return
    held = _Nodes({i: _copy(node) for i, node in enumerate(nodes)}, {v.name for v in graph.output})
    for index in range(len(nodes)):
        if index in held.nodes:
            held.close(index)
    kept = [*held.nodes.values()]
    left = {v for n in kept if n.op_type == _LOOP_VALUE for v in n.output}
    if leak := next((n for n in kept if not left.isdisjoint(_all_reads(n))), None):
        raise GraphError(f"{leak.name or leak.op_type}, outside a loop, reads a value inside it")
    order = topological_node_order([_all_reads(n) for n in kept], [[*n.output] for n in kept])
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
        """Move the nodes that the bodies of a flattened node need into these bodies."""
        node = self.nodes[index]
        bodies = [body for body in subgraphs_of(node) if _number(body)]
        wanted = [[n.input[0] for n in body.node] for body in bodies]
        for at, body in enumerate(bodies):
            others = {v for i, values in enumerate(wanted) if i != at for v in values}
            self._fill(body, wanted[at], index, others)

    def _fill(self, body: GraphProto, wanted: Sequence[str], index: int, others: Set[str]) -> None:
        writers = {v: i for i, node in self.nodes.items() for v in node.output if v}
        inside, entries = self._needed(wanted, writers)
        inside = self._only_here(inside, index, self.outputs | others)
        given = [e for e in map(self.nodes.__getitem__, entries) if e.op_type != _LOOP_VALUE]
        names = {e.output[0]: e.input[0] for e in given}
        flat = GraphProto(name=body.name.removeprefix(_FLAT), input=body.input)
        flat.node.extend(rename_values(self.nodes[i], names) for i in sorted(inside))
        written = {v for i in inside for v in self.nodes[i].output}
        for value, output in zip(wanted, body.output, strict=True):
            if value in written:
                written.remove(value)  # it is returned once
                flat.output.append(rename_value_info(output, {output.name: value}))
            else:
                source = names.get(value, value)
                flat.node.append(helper.make_node("Identity", [source], [output.name]))
                flat.output.append(output)
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
        """Return the nodes that ``wanted`` needs and that depend on an entry, and the entries."""
        entries: set[int] = set()
        depends: dict[int, bool] = {}
        waiting = [writers[v] for v in wanted if v in writers]
        while waiting:
            i = waiting[-1]
            sources = {writers[v] for v in _all_reads(self.nodes[i]) if v in writers}
            if is_subgraph_entry(self.nodes[i].name):
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
