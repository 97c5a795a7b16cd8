"""Facts about a model's values: types, symbolic shapes, and contents of small integer tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, TypeProto, ValueInfoProto, helper, numpy_helper

from tracea_graph.ir import DType, Expr, Extent, TensorSpec, Weight
from tracea_graph.onnx_io import symbolic_arithmetic

__all__ = [
    "FLOATS",
    "INTEGERS",
    "SMALL",
    "Partial",
    "Shape",
    "Value",
    "ValueFacts",
    "attribute",
    "elements",
    "small_integers",
]  # fmt: skip

Shape = tuple[Extent, ...]
Partial = Sequence[Extent | None] | None
"""A shape in which None stands for an unknown extent."""
Value = npt.NDArray[np.object_]
"""Elements are extents, booleans, or None if unknown."""

SMALL = 64
"""Integer tensors of up to this many elements are tracked by content."""

INTEGERS = frozenset({DType.I64, DType.I32, DType.BOOL})
FLOATS = frozenset({DType.F32, DType.F64})
_LAST = (1 << 63) - 1
"""Largest size ONNX can represent; corrupt models contain larger ones."""
_FEW, _LARGE = 8, 1 << 24
"""Float tensors of up to this many elements, with exact integral values up to this magnitude, are
tracked: they are intermediate results of size computations.
"""


def elements(value: Value) -> list[Any]:
    """Return extents, booleans or None in row-major order."""
    return list(value.reshape(-1))


@dataclass
class ValueFacts:
    """What is known of values.

    * ``specs``: specs of tensors;
    * ``types``: types of sequences and optionals;
    * ``values``: contents of small integer tensors, which may be symbolic;
    * ``constants``: weights by name;
    * ``sizes``: all extents that some value has.
    """

    specs: dict[str, TensorSpec] = field(default_factory=dict)
    types: dict[str, TypeProto] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    constants: dict[str, Weight] = field(default_factory=dict)
    sizes: set[Extent] = field(default_factory=set)
    _exprs: dict[str, Extent] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)
    _count: int = 0

    def shape(self, name: str) -> Shape | None:
        spec = self.specs.get(name)
        return spec.shape if spec else None

    def dtype(self, name: str) -> DType | None:
        spec = self.specs.get(name)
        return spec.dtype if spec else None

    def value(self, name: str) -> Value | None:
        return self.values.get(name) if name else None

    def numbers(self, name: str) -> list[int] | None:
        """Return the contents of a small integer tensor; None unless all are known numbers."""
        value = self.value(name)
        if value is None or self.dtype(name) not in INTEGERS:
            return None
        if not all(isinstance(v, int) for v in value.flat):
            return None
        return [int(v) for v in value.flat]

    def reals(self, name: str) -> list[float] | None:
        """Return the contents of a small constant as floats; None for any other value."""
        weight = self.constants.get(name)
        if weight is None or weight.count > SMALL:
            return None
        return [float(v) for v in weight.array().reshape(-1)]

    def fresh(self) -> str:
        """Return a new symbol for one unknown size."""
        while (symbol := f"?{self._count}") in self._taken:
            self._count += 1
        self._taken.add(symbol)
        return symbol

    def inside(self) -> ValueFacts:
        """Return facts for a node's body: a copy, so that facts found in it stay local."""
        return ValueFacts(
            dict(self.specs), dict(self.types), dict(self.values), self.constants,
            set(self.sizes), dict(self._exprs), self._taken,
        )  # fmt: skip

    def declare(self, infos: Sequence[ValueInfoProto]) -> None:
        """Add the declared graph inputs.

        A dimension named like ``past + sequence`` is the sum of both symbols if they are declared
        before it.
        """
        names = {d.dim_param for info in infos for d in info.type.tensor_type.shape.dim} - {""}
        for name in names:
            parsed = symbolic_arithmetic.parse_dimension(name, names - {name})
            if parsed is not None:
                self._exprs[name] = parsed
        self._taken |= names
        for info in infos:
            self.learn(info.name, info.type)

    def weight(self, weight: Weight) -> None:
        """Add a constant."""
        self.specs[weight.name], self.constants[weight.name] = weight.spec, weight
        if weight.name in self.values:
            return
        if weight.dtype in INTEGERS and weight.count <= SMALL:
            self.values[weight.name] = small_integers(weight.array())
        elif weight.dtype in FLOATS and weight.count <= _FEW:
            array = weight.array()
            if bool(np.all((np.abs(array) < _LARGE) & (array == np.rint(array)))):
                self.values[weight.name] = small_integers(array.astype(np.int64))

    def learn(self, name: str, kind: TypeProto, partial: Partial = None) -> None:
        """Record an inferred type; extents known in ``partial`` override those of the type."""
        if not kind.HasField("tensor_type"):
            if kind.WhichOneof("value"):
                self.types[name] = kind
            return
        tensor = kind.tensor_type
        dims: list[Extent | None] | None = None
        if tensor.HasField("shape"):
            dims = [self._extent(d) for d in tensor.shape.dim]
        if partial is not None:
            if dims is None or len(dims) != len(partial):
                dims = [None] * len(partial)
            dims = [d if p is None else p for d, p in zip(dims, partial, strict=True)]
        shape = None if dims is None else tuple(self.fresh() if d is None else d for d in dims)
        self.sizes |= set(shape or ())
        self.specs[name] = TensorSpec(DType.from_onnx(tensor.elem_type), shape)

    def not_negative(self, extent: Extent) -> bool:
        """Whether an extent is provably at least 0, as every size is."""
        return symbolic_arithmetic.is_at_least(extent, 0) or extent in self.sizes

    def type_of(self, name: str) -> TypeProto:
        """Return the ONNX type of a value; dims that are expressions are written as names."""
        if name in self.types:
            return self.types[name]
        spec = self.specs.get(name)
        if spec is None or spec.dtype is None:
            return TypeProto()
        shape = None if spec.shape is None else [self._dim(d) for d in spec.shape]
        return helper.make_tensor_type_proto(spec.dtype.onnx, shape)

    def data_of(self, name: str) -> TensorProto | None:
        """Return the contents of a fully known small integer tensor."""
        numbers, dtype = self.numbers(name), self.dtype(name)
        value = self.value(name)
        if numbers is None or dtype is None or value is None:
            return None
        kind = helper.tensor_dtype_to_np_dtype(dtype.onnx)
        return numpy_helper.from_array(np.array(numbers, kind).reshape(value.shape), name)

    def named(self, name: str) -> Extent:
        """Return the extent that a dimension's name denotes: a parsed expression, or a symbol."""
        if (known := self._exprs.get(name)) is not None:
            return known
        parsed = symbolic_arithmetic.parse_dimension(name, self._taken - {name})
        return name if parsed is None else parsed

    def _dim(self, extent: Extent) -> int | str:
        if isinstance(extent, Expr) or (isinstance(extent, int) and abs(extent) > _LAST):
            self._exprs[str(extent)] = extent
            return str(extent)
        return extent

    def _extent(self, dim: Any) -> Extent | None:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            return int(dim.dim_value)
        symbol = str(dim.dim_param)
        if symbol.startswith("unk__") and symbol not in self._taken:
            symbol = ""
        return self._exprs.get(symbol, symbol) if symbol else None


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    """Return an attribute of a node, or the default."""
    for attr in node.attribute:
        if attr.name == name:
            return helper.get_attribute_value(attr)
    return default


def small_integers(array: npt.NDArray[Any]) -> Value:
    """Return an array's elements as Python numbers."""
    out = np.empty(array.shape, object)
    out.reshape(-1)[:] = array.reshape(-1).tolist()
    return out
