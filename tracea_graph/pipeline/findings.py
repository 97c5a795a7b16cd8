"""What a model's weights hold that could be left out, and what became of it.

zero rows, columns, blocks, N:M patterns, unstructured zeros    structure of one matrix
exactly low rank                                                 the same
channels of zero scale                                           what a norm multiplies by
copies, transposed copies, matrices read by others too           two weights that are one
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tracea_graph.ir import DType, Node, Weight
from tracea_graph.ops.weights import ALIGNED
from tracea_graph.passes.sparse.structure import DENSE, Structure, WeightScan, as_matrix
from tracea_graph.rewrite import Trace
from tracea_graph.ttg import TileGraph
from tracea_graph.views import FindingRow

__all__ = ["Finding", "finding_rows", "findings_of"]

_LEAST = 1 << 14
"""Elements below which a matrix is not worth a look."""
_PRODUCTS = ("MatMul", "Gemm", "Conv")
_NORMS = ("BatchNormalization", "LayerNormalization", "InstanceNormalization")
_LOOKUP = ("Gather",)
_USING = ("dead-channels", "zero-blocks", "exact-rank", "unstructured")
"""Rules that make use of what is found."""


@dataclass(frozen=True)
class Finding:
    """Something about a weight: in words, and its bytes as they are and as they could be."""

    weight: str
    found: str
    before: int
    after: int
    nodes: tuple[str, ...]


def findings_of(graph: TileGraph, scan: WeightScan) -> tuple[Finding, ...]:
    """All there is to know of the constants of an imported graph, in the order of its weights."""
    readers: dict[str, list[Node]] = defaultdict(list)
    for region in graph.regions():
        for node in region.nodes:
            for value in node.inputs:
                readers[value].append(node)
    stored = (w for w in graph.weights.values() if not w.filled and w.dtype is DType.F32)
    known = [w for w in stored if readers[w.name]]
    found = [f for w in known for f in _of_scale(w, readers[w.name])]
    large = [w for w in known if w.count >= _LEAST and len(w.shape) >= 2]
    for weight in large:
        nodes = [n for n in readers[weight.name] if n.op in _PRODUCTS and _second(n, weight)]
        if nodes:
            found += _of_matrix(weight, nodes, scan)
    return (*found, *_copies(large, readers))


def finding_rows(found: tuple[Finding, ...], trace: Trace, kept: bool) -> tuple[FindingRow, ...]:
    """A row each: which rule made use of it in what is kept, or why none did."""
    applied: dict[str, str] = {}
    missed: dict[str, str] = {}
    for decision in trace.decisions:
        if decision.rule in _USING:
            said = applied if decision.verdict == "applied" else missed
            for name in decision.nodes:
                said.setdefault(name, decision.reason if said is missed else decision.rule)

    def used(finding: Finding) -> str:
        rule = next((applied[n] for n in finding.nodes if n in applied), "")
        if rule:
            return rule if kept else f"no: {rule} was not kept"
        why = next((missed[n] for n in finding.nodes if missed.get(n)), "")
        return f"no: {why}" if why else "no"

    return tuple(FindingRow(f.weight, f.found, f.before, f.after, used(f)) for f in found)


def _second(node: Node, weight: Weight) -> bool:
    return len(node.inputs) > 1 and node.inputs[1] == weight.name


def _names(nodes: list[Node]) -> tuple[str, ...]:
    return tuple(n.name or next(iter(n.outputs), n.op) for n in nodes)


def _of_scale(weight: Weight, nodes: list[Node]) -> Iterator[Finding]:
    """Channels a norm multiplies by zero."""
    norms = [n for n in nodes if n.op in _NORMS and _second(n, weight)]
    if norms and (dead := weight.count - int(np.count_nonzero(weight.array()))):
        words = f"{dead} of {weight.count} channels of zero scale"
        yield Finding(weight.name, words, weight.nbytes, weight.nbytes, _names(norms))


def _of_matrix(weight: Weight, nodes: list[Node], scan: WeightScan) -> Iterator[Finding]:
    structure, names = scan.structure(weight), _names(nodes)
    results_first = nodes[0].op == "Conv" or bool(nodes[0].attrs.get("transB", 0))
    if structure is not DENSE:
        for words, left in _words(structure, results_first):
            after = round(left * weight.nbytes)
            yield Finding(weight.name, words, weight.nbytes, after, names)
    if nodes[0].op != "Conv" and (factors := scan.ranks.factors(weight)) is not None:
        a, b = factors
        yield Finding(
            weight.name, f"exactly of rank {a.shape[1]}", weight.nbytes,
            4 * (a.size + b.size), names,
        )  # fmt: skip


def _words(structure: Structure, results_first: bool) -> Iterator[tuple[str, float]]:
    """Each thing found in a matrix, and the share of it that has to be stored then."""
    sides = ("outputs", "inputs") if results_first else ("inputs", "outputs")
    for lines, side in zip((structure.rows, structure.columns), sides, strict=True):
        if lines.size:
            dead = int(lines.sum())
            yield f"{dead} of {lines.size} {side} zero", 1 - dead / lines.size
    if structure.blocks > 0.1:
        words = f"{100 * structure.blocks:.0f} % of blocks {ALIGNED} × {ALIGNED} zero"
        yield words, 1 - structure.blocks
    elif structure.pattern:
        n, m, axis = structure.pattern
        yield f"{n}:{m} along the {sides[axis]}", 1 - structure.zeros + 1 / 32
    elif structure.zeros:
        yield f"{100 * structure.zeros:.0f} % zeros, unstructured", 1 - structure.zeros + 1 / 32


def _copies(large: list[Weight], readers: Mapping[str, list[Node]]) -> Iterator[Finding]:
    """Matrices stored twice, as they are or transposed, and such as several kinds of reader
    share."""
    first: dict[tuple[int, int, bytes], Weight] = {}
    for weight in large:
        matrix = as_matrix(weight)
        names = _names(readers[weight.name])
        ops = {n.op for n in readers[weight.name]}
        if ops & set(_LOOKUP) and ops & {*_PRODUCTS, "Transpose"}:
            words = "shared by a look-up and a product"
            yield Finding(weight.name, words, weight.nbytes, weight.nbytes, names)
        for turned, view in ((False, matrix), (True, matrix.T)):
            probe = np.ascontiguousarray(view[:4, :4]).tobytes()
            other = first.get((*view.shape, probe))
            if other is not None and np.array_equal(as_matrix(other), view):
                kind = "the transpose" if turned else "a copy"
                yield Finding(weight.name, f"{kind} of {other.name!r}", weight.nbytes, 0, names)
                break
        else:
            probe = np.ascontiguousarray(matrix[:4, :4]).tobytes()
            first.setdefault((*matrix.shape, probe), weight)
