"""Replace divisions by a constant scale whose quotients are rounded to few integers.

x / s, rounded to an integer and saturated, becomes fma(x, hi, x · lo) with hi + lo near 1 / s.
Only numbers next to the half between two integers could round differently: all are tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from tracea_graph.ir import DType
from tracea_graph.ops.chain import FULL, ROW, Chain, Step

__all__ = ["quotients", "reciprocal", "rounded_stores", "zero_of_rounded_rows"]

_NEAR = 12
"""Neighbouring float32 numbers to try on either side of a half."""
_WIDEST = 1024
"""Largest number of integers in a range."""
_LEAST, _MOST = 2.0**-60, 2.0**60
"""Bounds of the scales for which neither part of the reciprocal is subnormal."""


def quotients(chain: Chain) -> Mapping[int, str]:
    """Return expressions that replace divisions in a chain, by step number.

    A division is replaced if its divisor is a literal, and if later steps round its result,
    possibly add a literal, and saturate it.
    """
    found: dict[int, str] = {}
    for i, step in enumerate(chain.steps):
        ends = _range(chain, i) if step.op == "div" else None
        x, scale = step.args[0], step.args[-1]
        if ends is None or not isinstance(scale, float) or isinstance(x, float):
            continue
        pair = reciprocal(scale, *ends)
        if pair is not None:
            name = _name(chain, x)
            hi, lo = (f"set1({part.hex()}f)" for part in pair)
            exact = not pair[1]  # 0 would make NaN of infinity
            found[i] = f"{name} * {hi}" if exact else f"fma({name}, {hi}, {name} * {lo})"
    return found


def _range(chain: Chain, index: int) -> tuple[int, int] | None:
    """Return the bounds outside which a rounded quotient is saturated; None if it has another
    use than being rounded, maybe moved by a literal, and saturated."""
    ends: list[tuple[int, int]] = []
    for rounded in _readers(chain, index):
        if rounded is None or chain.steps[rounded].op != "round":
            return None
        for reader in _readers(chain, rounded):
            found = None if reader is None else _saturated(chain, reader)
            if found is None:
                return None
            ends += found
    if not ends:
        return None
    low, high = min(e[0] for e in ends), max(e[1] for e in ends)
    return (low, high) if high - low < _WIDEST else None


def _saturated(chain: Chain, index: int) -> list[tuple[int, int]] | None:
    """Return the bounds of the saturations at or after a step, less the literal it adds."""
    step, ends = chain.steps[index], list[tuple[int, int]]()
    zero = step.args[1] if step.op == "add" else 0.0
    held = _readers(chain, index) if step.op == "add" else [index]
    for at in held:
        if at is None or chain.steps[at].op != "saturate" or not isinstance(zero, float):
            return None
        low, high = chain.steps[at].args[1:]
        if not isinstance(low, float) or not isinstance(high, float):
            return None
        ends.append((int(low - zero), int(high - zero)))
    return ends


def rounded_stores(chain: Chain) -> Mapping[int, tuple[str, int]]:
    """Return the results that a rounding store instruction can write, by number.

    Each has the expression to round, already limited to the upper bound, and an integer to add to
    the rounded number.  Such a result is saturated to the range of the byte type in which it is
    stored.
    """
    found: dict[int, tuple[str, int]] = {}
    for number, (ref, dtype) in enumerate(zip(chain.results, chain.result_types, strict=True)):
        held = chain.step_of(ref, "saturate")
        if held is None or dtype not in _BOUNDS or held.args[1:] != _BOUNDS[dtype]:
            continue
        moved = chain.step_of(held.args[0], "add")
        zero = moved.args[1] if moved else 0.0
        rounded = chain.step_of(moved.args[0] if moved else held.args[0], "round")
        if rounded is None or not isinstance(zero, float) or zero != int(zero):
            continue
        source = rounded.args[0]
        least = 0.0 if dtype is DType.U8 else -_WIDEST
        if isinstance(source, float) or not least <= zero <= _WIDEST:
            continue
        low, high = (f"set1({bound - zero}f)" for bound in _BOUNDS[dtype])
        value = f"min({high}, {_name(chain, source)})"
        # a sum with a negative number could wrap; NaN becomes the lowest integer
        found[number] = (f"max({value}, {low})" if dtype is DType.I8 else value, int(zero))
    return found


def zero_of_rounded_rows(chain: Chain) -> int | None:
    """Return z if a chain stores ``round(x · a + b) + z`` as unsigned bytes, else None.

    x is the full operand 0; a and b are operands 1 and 2, one row each.
    """
    stored = rounded_stores(chain).get(0) if chain.result_types == (DType.U8,) else None
    rows = chain.operands == (FULL, ROW, ROW) and not chain.dtypes
    steps = chain.steps[:2] == (Step("mul", (0, 1)), Step("add", (3, 2)))
    if stored is None or not rows or not steps or len(chain.steps) not in (4, 5):
        return None
    zero = chain.steps[3].args[1] if len(chain.steps) == 5 else 0.0
    fits = stored[1] == zero and chain.steps[2] == Step("round", (4,))
    return stored[1] if fits and stored[1] <= 255 else None


_BOUNDS = {DType.U8: (0.0, 255.0), DType.I8: (-128.0, 127.0)}


def _name(chain: Chain, ref: int) -> str:
    count = len(chain.operands)
    return f"x{ref}" if ref < count else f"v{ref - count}"


def _readers(chain: Chain, index: int) -> list[int | None]:
    """Return the steps that read a step's value; None for a result of the chain."""
    value = len(chain.operands) + index
    steps: list[int | None] = [
        i for i, step in enumerate(chain.steps) if any(_is(a, value) for a in step.args)
    ]
    return [*steps, *([None] if value in chain.results else [])]


def _is(argument: int | float, value: int) -> bool:
    return isinstance(argument, int) and argument == value


def reciprocal(scale: float, low: int, high: int) -> tuple[float, float] | None:
    """Return float32 (hi, lo) such that ``fma(x, hi, x · lo)`` rounds to the integer of x / scale.

    Returns None if any quotient between ``low`` and ``high`` would be rounded differently. hi is
    at most 1 / scale, so that both products of an infinite x have the sign of x.
    """
    s = np.float32(scale)
    if not _LEAST < s < _MOST:
        return None
    exact = 1 / Fraction(float(s))
    hi = np.float32(float(exact))
    if Fraction(float(hi)) > exact:
        hi = np.nextafter(hi, np.float32(0))
    lo = np.float32(float(exact - Fraction(float(hi))))
    halves = np.arange(low - 1, high + 2, dtype=np.float64) + 0.5
    near = (halves * float(s)).astype(np.float32)
    bits = near.view(np.int32)[:, None] + np.arange(-_NEAR, _NEAR + 1, dtype=np.int32)
    x = bits.astype(np.int32).view(np.float32)
    added = np.multiply(x.astype(np.longdouble), np.longdouble(hi)) + x * lo
    same = np.rint(x / s) == np.rint(added.astype(np.float32))
    return (float(hi), float(lo)) if bool(same.all()) else None
