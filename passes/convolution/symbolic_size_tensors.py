"""Evaluate integer tensors that hold sizes, as expressions over the dimensions of other values.

    Gather(Shape(a), 2) - Gather(Shape(b), 2)    ->    [a.2 - b.2]

Only the operators that exporters use for size arithmetic are read; others are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, Extent, combine
from tracea_graph.passes.region_helpers import attribute
from tracea_graph.ttg import Region, TileGraph

__all__ = ["ShapeValues"]

Elements = npt.NDArray[np.object_]
_DEEPEST, _LARGEST = 40, 64


@dataclass
class ShapeValues:
    """Evaluates integer tensors as expressions over dimensions.

    ``dims`` maps each symbol that this introduces to the value and axis whose dimension it is.
    ``choices`` says whether a Where of a constant condition is read, too.
    """

    graph: TileGraph
    dims: dict[str, tuple[str, int]] = field(default_factory=dict)
    choices: bool = False

    def read(self, value: str, depth: int = 0) -> Elements | None:
        """Return the elements of a tensor as extents; None if they are not known."""
        weight = self.graph.weight(value)
        if weight is not None:
            small = weight.dtype in (DType.I64, DType.I32) and weight.count <= _LARGEST
            return weight.array().astype(object) if small else None
        region = self.graph.producer(value)
        if region is None or region.fused or depth > _DEEPEST:
            return None
        if region.op == "Shape":
            return self._shape(region)
        if region.op == "Where" and self.choices:
            return self._chosen(region, depth + 1)
        reader = _READERS.get(region.op)
        operands = [self.read(v, depth + 1) for v in region.operands if v] if reader else []
        known = [o for o in operands if o is not None]
        if reader is None or len(known) < len(operands) or sum(o.size for o in known) > _LARGEST:
            return None
        return reader(region, known)

    def _chosen(self, region: Region, depth: int) -> Elements | None:
        """Read a Where that replaces the -1 of a target shape, as torch's ``expand`` writes it."""
        condition, *parts = region.operands
        weight, read = self.graph.weight(condition), [self.read(v, depth) for v in parts]
        known = [p for p in read if p is not None]
        if weight is None or weight.count > _LARGEST or len(known) < len(parts):
            return None
        return np.asarray(np.where(weight.array(), *known), object)

    def _shape(self, region: Region) -> Elements | None:
        value = region.operands[0]
        shape = self.graph.spec(value).shape
        if shape is None:
            return None
        start, end = attribute(region, "start", 0), attribute(region, "end", None)
        if not isinstance(start, int) or not isinstance(end, int | None):
            return None
        elements: list[Extent] = []
        for axis, dim in enumerate(shape):
            name = f"{value}.{axis}"
            self.dims[name] = (value, axis)
            elements.append(dim if isinstance(dim, int) else name)
        return np.array(elements, object)[start:end]


def _truncated(a: Extent, b: Extent) -> Extent:
    """Return ``a / b`` truncated towards zero as in ONNX; ``b`` must be a positive number."""
    if not isinstance(b, int) or b < 1:
        raise ValueError("a size is divided by an unknown number")
    above = combine("floordiv", combine("max", a, 0), b)
    below = combine("floordiv", combine("max", combine("sub", 0, a), 0), b)
    return combine("sub", above, below)


def _elementwise(rule: Callable[[Extent, Extent], Extent]) -> Callable[..., Elements | None]:
    def read(_: Region, operands: list[Elements]) -> Elements | None:
        try:
            return np.asarray(np.frompyfunc(rule, 2, 1)(*operands), object)
        except ValueError:
            return None

    return read


def _gather(region: Region, operands: list[Elements]) -> Elements | None:
    data, at = operands
    if attribute(region, "axis", 0) != 0 or not all(isinstance(i, int) for i in at.reshape(-1)):
        return None
    return np.asarray(data[at.astype(int)], object)


def _slice(_: Region, operands: list[Elements]) -> Elements | None:
    data, *rest = operands
    numbers = [[int(i) for i in r.reshape(-1)] for r in rest]
    starts, ends = numbers[:2]
    axes = numbers[2] if len(numbers) > 2 else list(range(len(starts)))
    steps = numbers[3] if len(numbers) > 3 else [1] * len(starts)
    where = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = data.shape[axis]
        begin = max(start + size, 0) if start < 0 else min(start, size - (step < 0))
        if end < 0:
            stop: int | None = end + size
            stop = None if step < 0 and end + size < 0 else max(end + size, 0)
        else:
            stop = min(end, size)
        where[axis] = slice(begin, stop, step)
    return data[tuple(where)]


def _shaped(_: Region, operands: list[Elements]) -> Elements | None:
    data, shape = operands
    sizes = [int(i) for i in shape.reshape(-1)]
    return data.reshape([data.shape[i] if s == 0 else s for i, s in enumerate(sizes)])


def _transposed(region: Region, operands: list[Elements]) -> Elements | None:
    perm: Any = attribute(region, "perm", None)
    return operands[0].transpose(perm)


def _joined(region: Region, operands: list[Elements]) -> Elements | None:
    return np.concatenate(operands, int(str(attribute(region, "axis", 0))))


def _flat(region: Region, operands: list[Elements]) -> Elements | None:
    """Read Unsqueeze and Squeeze of scalars and short vectors."""
    if operands[0].size != 1:
        return None
    return operands[0].reshape(1 if region.op == "Unsqueeze" else ())


_READERS: Mapping[str, Callable[[Region, list[Elements]], Elements | None]] = MappingProxyType(
    {
        "Add": _elementwise(lambda a, b: combine("add", a, b)),
        "Sub": _elementwise(lambda a, b: 0 if a == b else combine("sub", a, b)),
        "Mul": _elementwise(lambda a, b: combine("mul", a, b)),
        "Div": _elementwise(_truncated),
        "Gather": _gather,
        "Slice": _slice,
        "Reshape": _shaped,
        "Transpose": _transposed,
        "Concat": _joined,
        "Unsqueeze": _flat,
        "Squeeze": _flat,
        "Cast": lambda _, operands: operands[0],
        "Identity": lambda _, operands: operands[0],
    }
)
