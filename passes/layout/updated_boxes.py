"""Replace an update by index tuples that form a box by a concatenation around the box.

ScatterND(x, Concat(each axis's positions, expanded to all), u)    ->    Concat(x[:a], u, x[b:])

PyTorch exports ``x[:, a:b] = u`` so, for example where a streaming model updates its cache.  The
box has all positions of all axes but one.  The rewrite is exact, since it only moves data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tracea_graph.ir import Array, Node, TensorSpec, Weight
from tracea_graph.passes.prove_extents import constant_ints
from tracea_graph.passes.region_helpers import (
    attribute,
    int_constant,
    operand_producer,
    with_private_producers,
)
from tracea_graph.reason_codes import unsuited_reason
from tracea_graph.rewrite import Miss, Proposal, constant_number
from tracea_graph.ttg import Region, TileGraph

__all__ = ["UpdatedBox"]

_SINCE = 10
"""Opset since which a Slice reads its ranges from operands."""
_DEEPEST, _LARGEST = 16, 1 << 16


@dataclass(frozen=True)
class _Line:
    """Integers that change along one axis of a tensor at most, and not along the others."""

    axis: int
    numbers: tuple[int, ...]


class UpdatedBox:
    """Concatenate what an update leaves and what it writes, if that is a range of one axis."""

    name = "updated-box"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "ScatterND" or region.fused:
            return
        x, index, updates = region.operands
        (result,), shape = region.results, _sizes(graph, x)
        box = _box(graph, index) if attribute(region, "reduction", "none") == "none" else None
        cut = [] if box is None or not shape else _partial_axes(shape, box)
        if box is None or shape is None or len(cut) != 1 or graph.opset < _SINCE:
            why = unsuited_reason(
                "it does not update a range of one axis whose sizes are constant"
            )
            yield Miss(self.name, region.id, why)
            return
        (axis,) = cut
        start, count = box[axis]
        parts, new = list[str](), list[Region]()
        weights, specs = dict[str, Weight](), dict[str, TensorSpec]()
        ends = [(0, start), (start + count, shape[axis])]
        for low, high in ends:
            if low == high:
                continue
            numbers = [int_constant(pair) for pair in ((low,), (high,), (axis,))]
            weights |= {w.name: w for w in numbers}
            part = f"{result} from {low}"
            sizes = (*shape[:axis], high - low, *shape[axis + 1 :])
            specs[part] = TensorSpec(graph.spec(x).dtype, sizes)
            new.append(_written(Node("Slice", (x, *(w.name for w in numbers)), (part,))))
            parts.append(part)
        parts.insert(start > 0, updates)
        new.append(_written(Node("Concat", tuple(parts), (result,), {"axis": axis})))
        covered = with_private_producers(graph, [region], (x, updates))
        yield Proposal(self.name, tuple(covered), tuple(new), specs, weights, step=True)


def _written(node: Node) -> Region:
    return Region(f"updated-box:{node.outputs[0]}", node.op, node.inputs, node.outputs, (node,))


def _sizes(graph: TileGraph, value: str) -> tuple[int, ...] | None:
    """Return the shape of a value, or None if a size is not constant."""
    shape = graph.spec(value).shape
    sizes = tuple(n for n in shape or () if isinstance(n, int))
    return sizes if shape is not None and len(sizes) == len(shape) else None


def _partial_axes(shape: Sequence[int], box: Sequence[tuple[int, int]]) -> list[int]:
    """Return the axes of which a box has a part; an axis behind the tuples is in it as a whole."""
    return [a for a, (start, count) in enumerate(box) if (start, count) != (0, shape[a])]


def _box(graph: TileGraph, index: str) -> list[tuple[int, int]] | None:
    """Return the first position and the length of a box along each axis that tuples index."""
    shape, weight = _sizes(graph, index), graph.weight(index)
    if not shape or len(shape) != shape[-1] + 1 or 0 in shape:
        return None
    if weight is not None:
        tuples = weight.array() if weight.count <= _LARGEST else None
        lines = [None if tuples is None else _line(tuples[..., a]) for a in range(shape[-1])]
    else:
        joined = operand_producer(graph, index, "Concat")
        if joined is None or len(joined.operands) != shape[-1]:
            return None
        if attribute(joined, "axis", 0) not in (-1, len(shape) - 1):
            return None
        lines = [_read(graph, part) for part in joined.operands]
    found = list[tuple[int, int]]()
    for axis, line in enumerate(lines):
        if line is None or (len(line.numbers) > 1 and line.axis != axis):
            return None
        first = line.numbers[0]
        if first < 0 or line.numbers != tuple(range(first, first + shape[axis])):
            return None
        found.append((first, shape[axis]))
    return found


def _line(numbers: Array) -> _Line | None:
    """Read constant integers."""
    if not np.issubdtype(numbers.dtype, np.integer) or not numbers.size:
        return None
    for axis in range(max(numbers.ndim, 1)):
        at = tuple(slice(None) if a == axis else slice(1) for a in range(numbers.ndim))
        if np.array_equal(np.broadcast_to(numbers[at], numbers.shape), numbers):
            return _Line(axis, tuple(int(n) for n in numbers[at].reshape(-1)))
    return None


def _read(graph: TileGraph, value: str, depth: int = 0) -> _Line | None:
    """Read integers that were computed from constants and sizes."""
    shape, region = _sizes(graph, value), graph.producer(value)
    if shape is None or 0 in shape or depth > _DEEPEST:
        return None
    if (weight := graph.weight(value)) is not None:
        return _line(weight.array()) if weight.count <= _LARGEST else None
    if region is None or region.fused:
        return None
    if region.op == "Range":
        start, step = (constant_number(graph, region.operands[i]) for i in (0, 2))
        if start is None or step is None:
            return None
        return _Line(0, tuple(int(start + step * i) for i in range(shape[0])))
    if region.op not in ("Cast", "Identity", "Expand", "Reshape", "Squeeze", "Unsqueeze", "Slice"):
        return None
    before = _sizes(graph, region.operands[0])
    line = _read(graph, region.operands[0], depth + 1)
    if line is None or before is None:
        return None
    if region.op == "Slice":
        return _sliced(graph, region, line, shape)
    if region.op in ("Cast", "Identity") or len(line.numbers) == 1:
        return line
    if region.op == "Expand":
        place = line.axis + len(shape) - len(before)
        return _Line(place, line.numbers)
    wide = [[a for a, n in enumerate(sizes) if n != 1] for sizes in (before, shape)]
    if [before[a] for a in wide[0]] != [shape[a] for a in wide[1]]:
        return None
    return _Line(wide[1][wide[0].index(line.axis)], line.numbers)


def _sliced(graph: TileGraph, region: Region, line: _Line, shape: tuple[int, ...]) -> _Line | None:
    """Read a range of a vector."""
    if len(shape) > 1 or len(region.operands) < 2:
        return None
    given = [constant_ints(graph, v) if v else None for v in region.operands[1:]]
    start, step = given[0], given[3] if len(given) > 3 else (1,)
    if start is None or step is None or step[0] < 1:
        return None
    low = start[0] + len(line.numbers) * (start[0] < 0)
    return _Line(0, line.numbers[max(low, 0) :: step[0]][: shape[0]])
