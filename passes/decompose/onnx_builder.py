"""Build the nodes that replace an operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracea_graph.ir import Array, Attr, DType, Extent, Node, TensorSpec, Weight
from tracea_graph.ops.elementwise import broadcast
from tracea_graph.passes.region_helpers import attribute, is_f32
from tracea_graph.ttg import Region, TileGraph
from tracea_graph.ttg.region import region_of

__all__ = ["CannotDecompose", "OnnxBuilder"]


class CannotDecompose(Exception):
    """The operator cannot be decomposed for the reason in the message.

    The message is empty if there is no need to decompose it.
    """


class OnnxBuilder:
    """Builder of the ONNX nodes that replace an operator; the last node writes its result.

    New values are named after the result of the operator, with ``mark`` and a number added; nodes
    are called as the operator is.
    """

    def __init__(self, graph: TileGraph, region: Region, mark: str = "") -> None:
        self.graph, self.region, self.stem = graph, region, f"{region.results[0]}{mark}"
        while graph.producer(f"{self.stem}_s0") or f"{self.stem}_c0" in graph.weights:
            self.stem += "_"  # an operator was replaced by nodes, of which this is the last
        self.nodes: list[Node] = []
        self.specs: dict[str, TensorSpec] = {}
        self.weights: dict[str, Weight] = {}

    # ---- read the operator -------------------------------------------------------------

    @property
    def operands(self) -> tuple[str, ...]:
        return (*self.region.operands, *[""] * 10)

    def attribute(self, name: str, default: Any) -> Any:
        return attribute(self.region, name, default)

    def spec(self, value: str) -> TensorSpec:
        if value in self.weights:
            return self.weights[value].spec
        return self.specs.get(value) or self.graph.spec(value)

    def image(self, *values: str) -> tuple[Any, ...]:
        """Check that values are float32 and of known rank; return the shape of the first.

        Raises CannotDecompose if they are not.
        """
        if not is_f32(self.graph, *values):
            raise CannotDecompose("its operands are not float32")
        if any(self.graph.spec(v).shape is None for v in values):
            raise CannotDecompose("the rank of an operand is not known")
        return self.graph.spec(values[0]).shape or ()

    def unread(self, *results: int) -> None:
        """Check that results are not used.  Raises CannotDecompose if one of them has readers."""
        for value in (v for i in results for v in self.region.results[i : i + 1] if v):
            if self.graph.uses(value) or self.graph.is_output(value):
                raise CannotDecompose(f"its result {value!r} is used")

    # ---- writing -----------------------------------------------------------------------

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        array = np.asarray(value, dtype)
        return self.entered(
            DType.I64 if dtype is np.int64 else DType.F32, array.shape, lambda: array
        )

    def derived(self, weight: Weight, shape: Sequence[int], part: slice = slice(None)) -> str:
        """Add a constant derived from a stored one; return its name.

        The stored constant, or the slice ``part`` of its elements, is converted to float32 and
        reshaped.
        """
        size = math.prod(shape)
        load = weight.load

        def array() -> Array:
            return np.asarray(load(), np.float32).reshape(-1)[part][:size].reshape(shape)

        return self.entered(DType.F32, tuple(shape), array)

    def transposed(self, weight: Weight, perm: Sequence[int], shape: Sequence[int]) -> str:
        """Return a stored constant as float32, transposed and then reshaped."""
        load = weight.load

        def array() -> Array:
            transposed = np.asarray(load(), np.float32).transpose(perm)
            return np.ascontiguousarray(transposed).reshape(shape)

        return self.entered(DType.F32, tuple(shape), array)

    def columns(self, weight: Weight, start: int, stop: int) -> str:
        """Return some columns of a stored matrix as float32."""
        load = weight.load

        def array() -> Array:
            return np.ascontiguousarray(np.asarray(load(), np.float32)[:, start:stop])

        return self.entered(DType.F32, (weight.shape[0], stop - start), array)

    def indices(self, *values: int) -> str:
        """Return a 1-D int64 constant."""
        return self.constant(values, np.int64)

    def vector(self, value: str, count: int) -> str:
        """Return a value reshaped to a vector of ``count`` elements."""
        if (weight := self.graph.weight(value)) is not None:
            return self.derived(weight, (count,))
        spec = TensorSpec(DType.F32, (count,))
        return self("Reshape", value, self.constant([count], np.int64), spec=spec)

    def entered(self, dtype: DType, shape: tuple[int, ...], load: Callable[[], Array]) -> str:
        """Add a constant of type ``dtype`` that ``load`` computes; return its name."""
        name = f"{self.stem}_c{len(self.weights)}"
        self.weights[name] = Weight(name, dtype, shape, load)
        return name

    def __call__(
        self, op: str, *inputs: str | float, spec: TensorSpec | None = None, result: str = "",
        **attrs: Attr,
    ) -> str:  # fmt: skip
        """Append a node and return its result.

        Without ``spec``, the result has the operands' broadcast shape.
        """
        names = tuple(v if isinstance(v, str) else self.constant(v) for v in inputs)
        if spec is None:
            shape = broadcast([self.spec(v).shape or () for v in names])
            spec = TensorSpec(DType.F32, shape)
        name = result or f"{self.stem}_s{len(self.nodes)}"
        self.nodes.append(Node(op, names, (name,), attrs, "", self.region.node.label))
        self.specs[name] = spec
        return name

    def many(
        self, op: str, inputs: Sequence[str], specs: Sequence[TensorSpec], **attrs: Attr
    ) -> tuple[str, ...]:
        """Append a node with several results, of these specs, and return them."""
        names = tuple(f"{self.stem}_s{len(self.nodes)}_{i}" for i in range(len(specs)))
        self.nodes.append(Node(op, tuple(inputs), names, attrs, "", self.region.node.label))
        self.specs |= dict(zip(names, specs, strict=True))
        return names

    def reshaped(self, x: str, batch: Extent, *shape: Extent) -> str:
        """Reshape a float32 value to ``[batch, *shape]``, of which all but the first are known."""
        known = (int(str(d)) for d in shape)
        spec = TensorSpec(DType.F32, (batch, *shape))
        return self("Reshape", x, self.indices(-1, *known), spec=spec)

    def unsqueezed(self, x: str, axis: int) -> str:
        spec = self.spec(x)
        shape = list(spec.shape or ())
        shape.insert(axis, 1)
        spec = TensorSpec(spec.dtype, tuple(shape))
        if self.graph.opset < 13:
            return self("Unsqueeze", x, spec=spec, axes=(axis,))
        return self("Unsqueeze", x, self.indices(axis), spec=spec)

    def squeezed(self, x: str, axis: int) -> str:
        spec = self.spec(x)
        shape = list(spec.shape or ())
        del shape[axis]
        spec = TensorSpec(spec.dtype, tuple(shape))
        if self.graph.opset < 13:
            return self("Squeeze", x, spec=spec, axes=(axis,))
        return self("Squeeze", x, self.indices(axis), spec=spec)

    def reduce(self, op: str, x: str, axes: Sequence[int]) -> str:
        shape = self.spec(x).shape or ()
        places = {a % len(shape) for a in axes}
        spec = TensorSpec(DType.F32, tuple(1 if i in places else d for i, d in enumerate(shape)))
        if self.graph.opset < (13 if op == "ReduceSum" else 18):
            return self(op, x, spec=spec, axes=tuple(axes), keepdims=1)
        return self(op, x, self.constant(axes, np.int64), spec=spec, keepdims=1)

    def regions(self) -> tuple[Region, ...]:
        """Return the nodes as regions.

        The last one writes the operator's results, except those that nothing reads.
        """
        last = self.nodes[-1]
        result = self.region.results[0]
        spec = self.specs.pop(last.outputs[0])
        if not self.graph.spec(result).shape:
            self.specs[result] = spec
        results = (result, *last.outputs[1:])
        self.nodes[-1] = Node(last.op, last.inputs, results, last.attrs, last.domain, last.name)
        stem = self.region.id
        made = (region_of(node, i) for i, node in enumerate(self.nodes))
        return tuple(Region(f"{stem}.{r.id}", r.op, r.operands, r.results, r.nodes) for r in made)
