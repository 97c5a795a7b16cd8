"""Sums of two numbers that are stored as bytes, in two multiply-adds.

A residual sum of quantized values rounds a result to a byte q, takes q and another byte r as the
numbers they stand for, adds these and rounds again:

    y = round((s · (q - z) + t · (r - v)) / u) + w        ->   y = round(r · b + (q · a + c))

All pairs of bytes are tried: the factors are kept only if every one gives the same y.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType
from tracea_graph.ops.chain import FULL, ROW, Chain, Step

__all__ = ["NOTHING_ADDED", "AddedBytes", "added_bytes"]

_BYTES = 256
_ROUNDED = 6
"""The number of the value round(x · a + b): after four operands, its third step."""
_CANDIDATES = 1000
_SPREAD = 4e-8
"""Relative distances of candidates from the real factors: roundings of float32."""
_NEAR = 1e-3
"""How far from a half numbers are that some candidate may round otherwise."""
_LARGEST = 32000.0
"""Sums that fit 16 bits with certainty, as instructions that pack bytes want."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class AddedBytes:
    """y = round(r · ``added_times`` + (q · ``times`` + ``offset``)), q in ``low`` … ``high``.

    Both are single multiply-adds in float32; y is limited to 0 and 255.
    """

    low: float
    high: float
    times: float
    added_times: float
    offset: float

    def as_c(self) -> str:
        """The fields of a ``tracea_added_bytes``."""
        numbers = astuple(self) if any(self.bits()) else ()
        return f"{{{', '.join(f'{number.hex()}f' for number in numbers)}}}"

    def bits(self) -> list[int]:
        """The numbers' bits as float32."""
        return [int(bits) for bits in np.array(astuple(self), np.float32).view(np.uint32)]


NOTHING_ADDED = AddedBytes(0.0, 0.0, 0.0, 0.0, 0.0)


@lru_cache(maxsize=256)
def added_bytes(chain: Chain) -> AddedBytes | None:
    """Return the factors that do what a chain of a sum, two rows and unsigned bytes does.

    Returns None if the chain is another one, or if no factors give the same bytes.
    """
    steps = (Step("mul", (0, 1)), Step("add", (4, 2)), Step("round", (5,)))
    if (
        chain.operands != (FULL, ROW, ROW, FULL)
        or chain.operand_types != (*[DType.F32] * 3, DType.U8)
        or chain.result_types != (DType.U8,)
        or chain.steps[:3] != steps
    ):
        return None
    bounds = _bounds(chain)
    if bounds is None:
        return None
    q, r = np.meshgrid(np.arange(bounds[0], bounds[1] + 1), np.arange(_BYTES), indexing="ij")
    with np.errstate(all="ignore"):
        wanted = _value(chain, q.astype(np.float32), r.astype(np.float32), rounds=True)
    if wanted is None or not (wanted.min() >= 0 and wanted.max() < _BYTES):
        return None
    return _found(chain, bounds, (q.ravel(), r.ravel()), wanted.ravel())


def _bounds(chain: Chain) -> tuple[int, int] | None:
    """Between which integers the only reader of the rounded value limits it."""
    readers = [step for step in chain.steps if _ROUNDED in step.args]
    if len(readers) != 1 or readers[0].op != "saturate" or _ROUNDED in chain.results:
        return None
    low, high = readers[0].args[1:]
    if not isinstance(low, float) or not isinstance(high, float) or high - low >= _BYTES:
        return None
    return (int(low), int(high)) if low == int(low) and high == int(high) else None


def _value(chain: Chain, q: Array, r: Array, rounds: bool) -> Array | None:
    """Return the result for the limited value q and operand r, in their type.

    Without ``rounds``, nothing is rounded or limited. None if other values are read.
    """
    known: dict[int, Array] = {3: r}
    for number, step in enumerate(chain.steps[3:], _ROUNDED + 1):
        if _ROUNDED in step.args:
            known[number] = q
            continue
        given = [known.get(a) if isinstance(a, int) else q.dtype.type(a) for a in step.args]
        compute = _OPERATIONS.get(step.op)
        if compute is None or any(one is None for one in given):
            return None
        limits = step.op in ("round", "saturate", "relu") and not rounds
        known[number] = np.asarray(given[0] if limits else compute(*given))
    return known.get(chain.results[0])


_OPERATIONS: dict[str, Any] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "round": np.rint,
    "saturate": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "relu": lambda x: np.maximum(x, x.dtype.type(0)),
}  # fmt: skip


def _found(
    chain: Chain, bounds: tuple[int, int], pairs: tuple[Array, Array], wanted: Array
) -> AddedBytes | None:
    corners = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    with np.errstate(all="ignore"):
        exact = _value(chain, corners[0], corners[1], rounds=False)
    if exact is None or not np.isfinite(exact).all():
        return None
    offset, times, added = exact[0], exact[1] - exact[0], exact[2] - exact[0]
    most = max(map(abs, bounds)) * abs(times) + _BYTES * abs(added) + abs(offset)
    if most > _LARGEST:
        return None
    whole = pairs[0] * times + pairs[1] * added + offset
    # What lies far from any half, no candidate rounds otherwise.
    near = abs(whole - np.floor(whole) - 0.5) < _NEAR * max(1.0, most / _BYTES)
    few = (pairs[0][near], pairs[1][near])
    for numbers in _candidates(times, added, offset):
        made = AddedBytes(float(bounds[0]), float(bounds[1]), *numbers)
        if (_rounded(made, *few) == wanted[near]).all() and (
            _rounded(made, *pairs) == wanted
        ).all():
            return made
    return None


def _candidates(times: float, added: float, offset: float) -> Iterator[tuple[float, ...]]:
    """Yield the real factors, rounded, and then others next to them."""
    exact = np.array([times, added, offset])
    yield tuple(map(float, exact.astype(np.float32)))
    rng = np.random.default_rng(1)
    steps = np.array([1.0, 1.0, 0.0]) * _SPREAD
    for _ in range(_CANDIDATES):
        moved = exact * (1 + steps * rng.standard_normal(3))
        moved[2] += _SPREAD * 100 * rng.standard_normal()
        yield tuple(map(float, moved.astype(np.float32)))


def _rounded(made: AddedBytes, q: Array, r: Array) -> Array:
    """What two multiply-adds give, each rounded to float32 once, as a byte."""
    wide = np.longdouble
    first = (q * wide(made.times) + wide(made.offset)).astype(np.float32)
    both = (r * wide(made.added_times) + first).astype(np.float32)
    return np.clip(np.rint(both), 0, _BYTES - 1)
