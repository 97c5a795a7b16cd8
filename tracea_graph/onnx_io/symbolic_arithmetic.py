"""Arithmetic on extents in a normal form, which makes provably equal sizes compare equal.

An extent is converted to a polynomial over atoms (symbols, and divisions, minima and maxima that
do not cancel) and back.  Symbols are sizes of at least 0.  Division rounds down; divisible terms
leave the division:

    (2·h + 5) // 2  =  h + 2          (h - 1) // 2 + 1  =  (h + 1) // 2
    (h // 2 + 1) // 2  =  (h + 2) // 4       (4·h + 6) // 8  =  (2·h + 3) // 4
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache, reduce

from tracea_graph.ir import Expr, Extent, combine, symbols_of
from tracea_graph.onnx_io.size_polynomials import (
    ONE,
    Monomial,
    Poly,
    divide,
    minus,
    monomial_quotient,
    plus,
    times,
)  # fmt: skip

__all__ = [
    "VARIANT",
    "add",
    "broadcast_size",
    "broadcast_variants",
    "ceil_div",
    "div",
    "equal_up_to_variants",
    "is_at_least",
    "maximum",
    "merge_sizes",
    "minimum",
    "mul",
    "parse_dimension",
    "product",
    "sub",
    "variants_symbol",
]  # fmt: skip

VARIANT = "\u00a7"
"""Separator between a symbol and the number of its variant; variants are sizes that may broadcast.
"""
_DEEPEST = 6
"""Maximum nesting of divisions that a proof of a bound examines."""


def add(a: Extent, b: Extent) -> Extent:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return _extent(plus(_poly(a), _poly(b)))


def sub(a: Extent, b: Extent) -> Extent:
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    return _extent(minus(_poly(a), _poly(b)))


def mul(a: Extent, b: Extent) -> Extent:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return _extent(times(_poly(a), _poly(b)))


def product(extents: tuple[Extent, ...]) -> Extent:
    """Return the product of extents; 1 for none."""
    result: Extent = 1
    for extent in extents:
        result = mul(result, extent)
    return result


def div(a: Extent, b: Extent) -> Extent:
    """Return ``a // b``, rounded down; ``b`` is not 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if a == b:
        return 1
    return _extent(_floor(_poly(a), _poly(b)))


def ceil_div(a: Extent, b: Extent) -> Extent:
    """Return ``a / b``, rounded up; ``b`` is at least 1."""
    return div(sub(add(a, b), 1), b)


def minimum(a: Extent, b: Extent) -> Extent:
    if is_at_least(sub(a, b), 0) or _covers(a, b):
        return b
    return a if is_at_least(sub(b, a), 0) or _covers(b, a) else _extreme("min", a, b)


def _covers(a: Extent, b: Extent) -> bool:
    """Whether ``a`` is ``max(2·b − 1, 0)``, or ``max(…, 0)`` of the symbol ``b`` alone and at
    least ``b`` from 1 on.

    Where the size ``b`` is 0, ``a`` is at least 0.
    """
    if not (isinstance(a, Expr) and a.op == "max" and a.args[1] == 0 and not isinstance(b, int)):
        return False
    inner = a.args[0]
    if {*symbols_of(inner)} == {b}:
        return is_at_least(sub(inner, b), 0, least=1)
    return add(inner, 1) == mul(b, 2)


def maximum(a: Extent, b: Extent) -> Extent:
    if is_at_least(sub(a, b), 0):
        return a
    return b if is_at_least(sub(b, a), 0) else _extreme("max", a, b)


def is_at_least(a: Extent, bound: int, least: int = 0) -> bool:
    """Whether an extent is provably at least ``bound`` if every symbol is at least ``least``."""
    if isinstance(a, int):
        return a >= bound
    low = _lowest(_poly(a), least)
    return low is not None and low >= bound


def broadcast_size(a: Extent, b: Extent) -> Extent | None:
    """Return the size that two axes broadcast to, assuming they do; None if that is unknown.

    A size clipped to a constant, as in ``table[:seq]``, broadcasts only while it is not clipped.
    Two variants of one symbol broadcast to the larger one; sums that differ only in variants are
    taken to be equal.
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
    whole_a, whole_b = _unclipped(a), _unclipped(b)
    if (symbol := variants_symbol(whole_a)) is not None and symbol == variants_symbol(whole_b):
        return _extreme("max", whole_a, whole_b)
    if equal_up_to_variants(a, b):
        return a
    return b if _unclipped(a) == b else None


def broadcast_variants(extent: object) -> frozenset[str] | None:
    """Return the variants of a symbol that broadcast to an extent; None if there are none."""
    if isinstance(extent, str) and VARIANT in extent:
        return frozenset((extent,))
    if not isinstance(extent, Expr) or extent.op != "max":
        return None
    a, b = map(broadcast_variants, extent.args)
    return a | b if a and b else None


def equal_up_to_variants(a: Extent, b: Extent) -> bool:
    """Whether two sizes are equal or differ only in variants of their symbols."""
    return a == b or _without_variants(a) == _without_variants(b)


def _without_variants(extent: Extent) -> Extent:
    """The extent over the base symbols of its variants."""
    if isinstance(extent, str):
        return extent.partition(VARIANT)[0]
    if not isinstance(extent, Expr):
        return extent
    if (symbol := variants_symbol(extent)) is not None:
        return symbol
    a, b = map(_without_variants, extent.args)
    return Expr(extent.op, (a, b))


def variants_symbol(extent: Extent) -> str | None:
    """Return the symbol whose variants broadcast to an extent; None if not exactly one."""
    names = {name.partition(VARIANT)[0] for name in broadcast_variants(extent) or ()}
    return names.pop() if len(names) == 1 else None


def merge_sizes(a: Extent | None, b: Extent | None) -> Extent | None:
    """Return the more informative of two extents of one axis; None stands for unknown."""
    if a is None or isinstance(b, int):
        return b if b is not None else a
    return a


def parse_dimension(text: str, symbols: Iterable[str]) -> Extent | None:
    """Parse a dimension name as a sum of products of known symbols; None if it is not one.

    Exporters name dimensions this way, for example ``past_sequence + sequence``.
    """
    known = frozenset(symbols)
    result: Extent = 0
    for term in text.split("+"):
        part: Extent = 1
        for factor in map(str.strip, term.split("*")):
            if factor not in known and not factor.isdecimal():
                return None
            part = mul(part, factor if factor in known else int(factor))
        result = add(result, part)
    return result


# ---- division --------------------------------------------------------------------------


def _floor(a: Poly, b: Poly) -> Poly:
    """Normal form of ``a // b``."""
    if len(b) != 1:
        exact = divide(a, b)
        return exact if exact is not None else _atom("floordiv", _extent(a), _extent(b))
    ((atoms, factor),) = b.items()
    if not atoms and factor > 0:
        return _floor_number(a, factor)
    whole, rest = dict[Monomial, int](), dict[Monomial, int]()
    for monomial, f in a.items():
        quotient = monomial_quotient(monomial, atoms)
        if quotient is not None and f % factor == 0:
            whole[quotient] = f // factor
        else:
            rest[monomial] = f
    return plus(whole, _atom("floordiv", _extent(rest), _extent(b))) if rest else whole


def _floor_number(a: Poly, b: int) -> Poly:
    """``a // b`` for a positive number, with every remaining coefficient below it."""
    whole = {m: f // b for m, f in a.items() if f // b}
    rest = {m: f % b for m, f in a.items() if f % b}
    number = rest.pop(ONE, 0)
    if not rest:
        return whole
    common = math.gcd(b, *rest.values())
    b, number = b // common, number // common
    rest = {m: f // common for m, f in rest.items()}
    inner = [m for m, f in rest.items() if f == 1 and _divisor(m) is not None]
    if b > 1 and len(inner) == 1:
        ((expr,),) = inner
        assert isinstance(expr, Expr) and isinstance(expr.args[1], int)
        del rest[inner[0]]
        outside = times(plus(rest, {ONE: number} if number else {}), {ONE: expr.args[1]})
        return plus(whole, _floor_number(plus(_poly(expr.args[0]), outside), b * expr.args[1]))
    rest |= {ONE: number} if number else {}
    return plus(whole, rest if b == 1 else _atom("floordiv", _extent(rest), b))


def _divisor(monomial: Monomial) -> int | None:
    """Divisor of a monomial that is a single division by a number."""
    atom = monomial[0] if len(monomial) == 1 else None
    if not isinstance(atom, Expr) or atom.op != "floordiv":
        return None
    return atom.args[1] if isinstance(atom.args[1], int) and atom.args[1] > 0 else None


def _atom(op: str, a: Extent, b: Extent) -> Poly:
    return _poly(combine(op, a, b))


# ---- bounds ----------------------------------------------------------------------------


def _lowest(poly: Poly, least: int) -> int | None:
    """A lower bound of the polynomial; None if none is found."""
    plain = _sum_of_lows({m: Fraction(f) for m, f in poly.items()}, least)
    spread = _sum_of_lows(_without_divisions(poly), least)
    found = [math.ceil(low) for low in (plain, spread) if low is not None]
    return max(found, default=None)


def _sum_of_lows(poly: dict[Monomial, Fraction], least: int) -> Fraction | None:
    total = Fraction(0)
    for monomial, factor in poly.items():
        lows = [low for atom in monomial if (low := _low(atom, least)) is not None]
        unsigned = len(lows) > 1 and min(lows) < 0
        if len(lows) < len(monomial) or unsigned or (monomial and factor < 0):
            return None
        total += factor * math.prod(lows)
    return total


def _without_divisions(poly: Poly) -> dict[Monomial, Fraction]:
    """A lower bound without divisions by numbers: ``(n - d + 1) / d ≤ n // d ≤ n / d``."""
    out = {m: Fraction(f) for m, f in poly.items()}
    for _ in range(_DEEPEST):
        lone = next((m for m in out if _divisor(m) is not None), None)
        if lone is None:
            break
        factor, divisor, atom = out.pop(lone), _divisor(lone), lone[0]
        assert divisor is not None and isinstance(atom, Expr)
        inner = {m: Fraction(f) for m, f in _poly(atom.args[0]).items()}
        if factor > 0:
            inner[ONE] = inner.get(ONE, Fraction(0)) - divisor + 1
        for monomial, f in inner.items():
            out[monomial] = out.get(monomial, Fraction(0)) + factor * f / divisor
    return {m: f for m, f in out.items() if f}


@lru_cache(maxsize=4096)
def _low(atom: str | Expr, least: int) -> int | None:
    """A provable lower bound of the atom; None if none is known."""
    if isinstance(atom, str):
        return least
    a, b = (arg if isinstance(arg, int) else _lowest(_poly(arg), least) for arg in atom.args)
    if atom.op == "min":
        return None if a is None or b is None else min(a, b)
    if atom.op == "max":
        return max((low for low in (a, b) if low is not None), default=None)
    if atom.op != "floordiv" or a is None or b is None or b < 1:
        return None
    if isinstance(atom.args[1], int):
        return a // b
    return 0 if a >= 0 else None


def _extreme(op: str, a: Extent, b: Extent) -> Extent:
    """``min`` or ``max`` of distinct arguments, symbols before the number."""
    parts = {*_parts(op, a), *_parts(op, b)}
    numbers = [p for p in parts if isinstance(p, int)]
    others: list[Extent] = [p for p in parts if not isinstance(p, int)]
    others.sort(key=str)
    if numbers:
        others.append(min(numbers) if op == "min" else max(numbers))
    return reduce(lambda x, y: combine(op, x, y), others)


def _parts(op: str, extent: Extent) -> list[Extent]:
    if isinstance(extent, Expr) and extent.op == op:
        return [part for arg in extent.args for part in _parts(op, arg)]
    return [extent]


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


# ---- conversion ------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _poly(extent: Extent) -> Poly:
    if isinstance(extent, int):
        return {ONE: int(extent)} if extent else {}
    if isinstance(extent, str):
        return {(extent,): 1}
    a, b = extent.args
    if extent.op == "mul":
        return times(_poly(a), _poly(b))
    if extent.op == "add":
        return plus(_poly(a), _poly(b))
    return minus(_poly(a), _poly(b)) if extent.op == "sub" else {(extent,): 1}


def _extent(poly: Poly) -> Extent:
    if not poly:
        return 0
    terms = sorted(poly.items(), key=lambda t: (t[1] < 0, -len(t[0]), tuple(map(str, t[0]))))
    result: Extent = 0
    for monomial, factor in terms:
        term: Extent = 1
        for atom in monomial:
            term = combine("mul", term, atom)
        term = combine("mul", term, abs(factor))
        result = combine("add" if factor > 0 else "sub", result, term)
    return result
