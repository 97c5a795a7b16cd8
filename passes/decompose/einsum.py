"""Decompose Einsum into a matrix product, an outer product or a transposition.

ibnd,jbnd->bnij      -> MatMul of [b,n,i,d] and [b,n,d,j]
ibh,hnd->ibnd        -> MatMul of [i,b,h] and [h,n·d], then Reshape
i,j->ij              -> Mul of [i,1] and [1,j]
bhwc->bchw           -> Transpose

Every label is of one of four kinds, by where it occurs: in both operands and the result (batch),
only in both operands (summed), in the left operand and the result (rows), in the right operand
and the result (columns).
Source: the ONNX specification.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracea_graph.ir import DType, Extent, TensorSpec, combine
from tracea_graph.passes.decompose.onnx_builder import CannotDecompose, OnnxBuilder

__all__ = ["decompose_einsum"]

Groups = Sequence[str]
"""Axes of a value, each a string of labels that form one axis; "" is an axis of size 1."""


@dataclass(frozen=True)
class _Sum:
    builder: OnnxBuilder
    sizes: Mapping[str, Extent]

    def size(self, labels: str) -> Extent:
        total: Extent = 1
        for label in labels:
            total = combine("mul", total, self.sizes[label])
        return total

    def spec(self, groups: Groups) -> TensorSpec:
        return TensorSpec(DType.F32, tuple(self.size(g) for g in groups))

    def transposed(self, value: str, labels: str, order: str) -> str:
        if labels == order:
            return value
        perm = tuple(labels.index(i) for i in order)
        return self.builder("Transpose", value, spec=self.spec(order), perm=perm)

    def grouped(self, value: str, before: Groups, after: Groups) -> str:
        """Reshape a value from axes ``before`` to axes ``after``; return the new value's name.

        Raises CannotDecompose if more than one of the new sizes is neither known nor that of the
        axis at the same index.
        """
        if list(before) == list(after):
            return value
        target = self.target(before, after)
        if target is None:
            raise CannotDecompose("the sizes of its axes are not known")
        return self.builder("Reshape", value, self.builder.indices(*target), spec=self.spec(after))

    def target(self, before: Groups, after: Groups) -> list[int] | None:
        """Return the target of a Reshape from ``before`` to ``after``; None if it needs two -1."""
        target = []
        for i, labels in enumerate(after):
            size = self.size(labels)
            copied = labels and list(before[i : i + 1]) == [labels]
            target.append(0 if copied else size if isinstance(size, int) else -1)
        return target if target.count(-1) <= 1 else None

    def laid(self, value: str, labels: str, groups: Groups) -> str:
        """Transpose and reshape an operand to the axes ``groups``; return the new value's name.

        For a constant, a new constant in that layout is stored.
        """
        order, weight = "".join(groups), self.builder.graph.weight(value)
        if weight is not None:
            perm = tuple(labels.index(i) for i in order)
            shape = [math.prod(weight.shape[labels.index(i)] for i in g) for g in groups]
            return self.builder.transposed(weight, perm, shape)
        return self.grouped(self.transposed(value, labels, order), order, groups)


def decompose_einsum(s: OnnxBuilder) -> OnnxBuilder:
    """Write an Einsum of one or two operands as matrix products, reshapes and transposes.

    Raises CannotDecompose if an axis is repeated, broadcast, or summed over in one operand only.
    """
    terms, result = _read(s)
    names = s.region.operands
    s.image(*names)
    both = _Sum(s, _sizes(s, names, terms))
    if len(terms) == 1:
        if sorted(terms[0]) != sorted(result):
            raise CannotDecompose("it sums over an axis that only one operand has")
        if both.transposed(names[0], terms[0], result) == names[0]:
            s("Identity", names[0], spec=both.spec(result))
        return s
    pairs = list(zip(names, terms, strict=True))
    if s.graph.weight(names[0]) is not None and s.graph.weight(names[1]) is None:
        pairs.reverse()
    (x, left), (w, right) = pairs
    if any(i not in result + right for i in left) or any(i not in result + left for i in right):
        raise CannotDecompose("it sums over an axis that only one operand has")
    if not set(left) & set(right) - set(result):
        _outer(both, pairs, result)
    else:
        _product(both, x, left, w, right, result)
    return s


def _read(s: OnnxBuilder) -> tuple[list[str], str]:
    """Return the labels of the operands and of the result."""
    given = s.attribute("equation", "")
    equation = (given.decode() if isinstance(given, bytes) else str(given)).replace(" ", "")
    before, arrow, result = equation.partition("->")
    terms = before.split(",")
    if "." in equation or len(terms) != len(s.region.operands) or len(terms) > 2:
        raise CannotDecompose("its equation has an ellipsis, or it has more than two operands")
    if any(len(set(t)) < len(t) for t in (*terms, result)):
        raise CannotDecompose("it takes the diagonal of an operand")
    if not arrow:
        result = "".join(sorted(i for i in set(before) - {","} if before.count(i) == 1))
    return terms, result


def _sizes(s: OnnxBuilder, names: Sequence[str], terms: Sequence[str]) -> Mapping[str, Extent]:
    """Return the size of each label, which must agree in both operands."""
    sizes: dict[str, Extent] = {}
    for name, labels in zip(names, terms, strict=True):
        shape = s.spec(name).shape or ()
        if len(shape) != len(labels):
            raise CannotDecompose("its equation does not fit its operands")
        for label, size in zip(labels, shape, strict=True):
            if sizes.setdefault(label, size) != size:
                raise CannotDecompose(
                    f"its operands are not known to have equal sizes along axis {label!r}"
                )
    return sizes


def _outer(both: _Sum, pairs: Sequence[tuple[str, str]], result: str) -> None:
    """Multiply operands that share no summed axis, with missing axes of size 1."""
    sides = []
    for value, labels in pairs:
        groups = [i if i in labels else "" for i in result]
        sides.append(both.laid(value, labels, groups))
    both.builder("Mul", *sides, spec=both.spec(result))


def _product(both: _Sum, x: str, left: str, w: str, right: str, result: str) -> None:
    batch = [i for i in result if i in left and i in right]
    summed = "".join(i for i in left if i in right and i not in result)
    rows = "".join(i for i in result if i in left and i not in right)
    columns = "".join(i for i in result if i in right and i not in left)
    # without a batch, rows may stay several axes
    lines = [rows] if batch or not rows else list(rows)
    outer: list[str] = []
    grouped = [*batch, *lines, columns]
    if batch and len(rows) > 1 and both.target(grouped, list("".join(grouped))) is None:
        outer, lines = list(rows[:-1]), [rows[-1]]  # w is broadcast along the others
    a = both.laid(x, left, [*outer, *batch, *lines, summed])
    b = both.laid(w, right, [*batch, summed, columns])
    made = [*outer, *batch, *lines, columns]
    y = both.builder("MatMul", a, b, spec=both.spec(made))
    apart = "".join(made)
    both.transposed(both.grouped(y, made, list(apart)), apart, result)
