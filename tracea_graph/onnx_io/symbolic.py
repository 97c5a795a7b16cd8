"""Arithmetic on extents in one normal form, so that provably equal sizes compare equal.

An extent becomes a polynomial over atoms (symbols, and divisions, minima and maxima that do not
cancel) and back.  Symbols are sizes of at least 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from tracea_graph.ir import Expr, Extent, combine

__all__ = ["add", "at_least", "broadcast", "div", "merge", "minimum", "mul", "product", "sub"]

Atom = str | Expr
Monomial = tuple[Atom, ...]
Poly = dict[Monomial, int]


def add(a: Extent, b: Extent) -> Extent:
    return _extent(_sum(_poly(a), _poly(b), 1))


def sub(a: Extent, b: Extent) -> Extent:
    return _extent(_sum(_poly(a), _poly(b), -1))


def mul(a: Extent, b: Extent) -> Extent:
    return _extent(_times(_poly(a), _poly(b)))


def product(extents: tuple[Extent, ...]) -> Extent:
    """The product of extents; 1 for none."""
    result: Extent = 1
    for extent in extents:
        result = mul(result, extent)
    return result


def div(a: Extent, b: Extent) -> Extent:
    """``a // b``, exact where every term of ``a`` is a multiple of ``b``; ``b`` is not 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if a == b:
        return 1
    divisor = _poly(b)
    if len(divisor) == 1:
        quotient = _divide(_poly(a), divisor)
        if quotient is not None:
            return _extent(quotient)
    return combine("floordiv", a, b)


def minimum(a: Extent, b: Extent) -> Extent:
    if at_least(sub(a, b), 0):
        return b
    return a if at_least(sub(b, a), 0) else combine("min", a, b)


def at_least(a: Extent, bound: int) -> bool:
    """Whether an extent is provably no smaller than ``bound``."""
    total = 0
    for monomial, factor in _poly(a).items():
        lows = [_low(atom) for atom in monomial]
        if None in lows or (monomial and factor < 0):
            return False
        total += factor * math.prod(low for low in lows if low is not None)
    return total >= bound


def broadcast(a: Extent, b: Extent) -> Extent | None:
    """The size two axes broadcast to whenever they do; None if that depends.

    A size clipped to a constant, as in ``table[:seq]``, broadcasts only while it is not clipped.
    """
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    if isinstance(a, int):
        return a
    if isinstance(b, int):
        return b
    if _unclipped(b) == a:
        return a
    return b if _unclipped(a) == b else None


def merge(a: Extent | None, b: Extent | None) -> Extent | None:
    """The more telling of two descriptions of one size."""
    if a is None or isinstance(b, int):
        return b if b is not None else a
    return a


def _low(atom: Atom) -> int | None:
    """0 or 1, whichever the atom is provably no smaller than; None if it may be negative."""
    if isinstance(atom, str):
        return 1
    a, b = atom.args
    for bound in (1, 0):
        known = at_least(a, bound), at_least(b, bound)
        if (atom.op == "min" and all(known)) or (atom.op == "max" and any(known)):
            return bound
    return 0 if atom.op == "floordiv" and at_least(a, 0) and at_least(b, 1) else None


def _unclipped(extent: Extent) -> Extent:
    if not isinstance(extent, Expr):
        return extent
    a, b = extent.args
    if extent.op == "min" and isinstance(b, int):
        return _unclipped(a)
    if extent.op == "min" and isinstance(a, int):
        return _unclipped(b)
    if extent.op == "sub":
        return sub(_unclipped(a), b)
    return add(_unclipped(a), _unclipped(b)) if extent.op == "add" else extent


def _poly(extent: Extent) -> Poly:
    if isinstance(extent, int):
        return {(): int(extent)} if extent else {}
    if isinstance(extent, str):
        return {(extent,): 1}
    a, b = extent.args
    if extent.op == "mul":
        return _times(_poly(a), _poly(b))
    if extent.op in ("add", "sub"):
        return _sum(_poly(a), _poly(b), 1 if extent.op == "add" else -1)
    return {(extent,): 1}


def _sum(a: Poly, b: Mapping[Monomial, int], sign: int) -> Poly:
    out = dict(a)
    for monomial, factor in b.items():
        out[monomial] = out.get(monomial, 0) + sign * factor
    return {m: f for m, f in out.items() if f}


def _times(a: Poly, b: Poly) -> Poly:
    out: Poly = {}
    for m, f in a.items():
        for n, g in b.items():
            key = tuple(sorted(m + n, key=str))
            out[key] = out.get(key, 0) + f * g
    return {m: f for m, f in out.items() if f}


def _divide(a: Poly, b: Poly) -> Poly | None:
    ((atoms, factor),) = b.items()
    out: Poly = {}
    for monomial, f in a.items():
        rest = Counter(monomial)
        rest.subtract(Counter(atoms))
        if f % factor or min(rest.values(), default=0) < 0:
            return None
        out[tuple(sorted(rest.elements(), key=str))] = f // factor
    return out


def _extent(poly: Poly) -> Extent:
    terms = sorted(poly.items(), key=lambda t: (t[1] < 0, -len(t[0]), tuple(map(str, t[0]))))
    result: Extent = 0
    for monomial, factor in terms:
        term: Extent = 1
        for atom in monomial:
            term = combine("mul", term, atom)
        term = combine("mul", term, abs(factor))
        result = combine("add" if factor > 0 else "sub", result, term)
    return result
