"""Polynomials with integer coefficients, the representation of sizes.

A monomial is the sorted tuple of its atoms, the empty one being 1; a polynomial maps monomials to
nonzero coefficients.  Polynomials are immutable by convention.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tracea_graph.ir import Expr

__all__ = [
    "ONE", "Atom", "Monomial", "Poly", "divide", "minus", "monomial_quotient", "plus", "times",
]  # fmt: skip

Atom = str | Expr
Monomial = tuple[Atom, ...]
Poly = Mapping[Monomial, int]

ONE: Monomial = ()


def plus(a: Poly, b: Poly) -> Poly:
    return _sum(a, b, 1)


def minus(a: Poly, b: Poly) -> Poly:
    return _sum(a, b, -1)


def times(a: Poly, b: Poly) -> Poly:
    out: dict[Monomial, int] = {}
    for m, f in a.items():
        for n, g in b.items():
            key = tuple(sorted(m + n, key=str)) if m and n else m or n
            out[key] = out.get(key, 0) + f * g
    return {m: f for m, f in out.items() if f}


def divide(a: Poly, b: Poly) -> Poly | None:
    """Return ``a / b`` if ``b`` divides ``a``, else None.

    Long division by the leading monomials in graded lexicographic order, which products preserve.
    """
    atoms = sorted({atom for poly in (a, b) for m in poly for atom in m}, key=str)

    def order(monomial: Monomial) -> tuple[int, ...]:
        count = Counter(monomial)
        return (len(monomial), *(count[atom] for atom in atoms))

    lead = max(b, key=order)
    quotient: Poly = {}
    while a:
        first = max(a, key=order)
        rest = monomial_quotient(first, lead)
        if rest is None or a[first] % b[lead]:
            return None
        part = {rest: a[first] // b[lead]}
        quotient, a = plus(quotient, part), minus(a, times(part, b))
    return quotient


def monomial_quotient(a: Monomial, b: Monomial) -> Monomial | None:
    """Return ``a / b`` if every atom of ``b`` is in ``a``."""
    if not b:
        return a
    rest = Counter(a)
    rest.subtract(Counter(b))
    if min(rest.values(), default=0) < 0:
        return None
    return tuple(sorted(rest.elements(), key=str))


def _sum(a: Poly, b: Poly, sign: int) -> Poly:
    out = dict(a)
    for monomial, factor in b.items():
        out[monomial] = out.get(monomial, 0) + sign * factor
    return {m: f for m, f in out.items() if f}
