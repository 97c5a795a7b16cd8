"""Elementwise expressions in GPU kernels: the CPU backend's steps, applied to scalars."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from tracea_graph.ir import DType
from tracea_graph.kernels import chain_source
from tracea_graph.kernels.gpu.finite_divisions import finite_divisions
from tracea_graph.ops.chain import FLOATS8, HALVES, Chain

__all__ = [
    "ELEMENTS",
    "ChainTensor",
    "chain_template_parameters",
    "is_whole_byte",
    "near_roundings",
    "operands",
    "results",
    "vector_length",
]

ELEMENTS: Mapping[DType, str] = MappingProxyType(
    {
        DType.F32: "float",
        DType.F16: "f16",
        DType.BF16: "bf16",
        DType.BOOL: "truth",
        DType.I32: "i32",
        DType.I64: "i64",
        DType.U8: "u8",
        DType.I8: "i8",
        DType.F8E4M3FN: "f8",
        DType.F8E5M2: "f8e5",
    }
)
"""Name of an element type in the templates (``templates/values.h``)."""

_LEAST_DIVISOR, _MOST_DIVISOR = 2.0**-60, 2.0**60
"""Divisors whose inverse, and what a quotient leaves, are far from being denormal."""
_ROUNDED_BY_SUMS = 2.0**22
"""Magnitude below which a sum with 1.5 · 2^23 is an integer."""
_BOUNDS: Mapping[DType, tuple[float, float]] = MappingProxyType(
    {DType.U8: (0.0, 255.0), DType.I8: (-128.0, 127.0)}
)
"""Smallest and largest number of each type of bytes."""
_BYTES = 16
"""Bytes of one memory access."""


@dataclass(frozen=True)
class ChainTensor:
    """An operand or result of a chain: its index, element type and kind of broadcast.

    ``expression`` is empty for an operand, and the C expression of its value for a result.
    """

    index: int
    dtype: DType
    kind: str = "full"
    expression: str = ""

    @property
    def element(self) -> str:
        return ELEMENTS[self.dtype]

    @property
    def held(self) -> str:
        """Type of one element in a register."""
        return "vm" if self.dtype is DType.BOOL else "vf"

    @property
    def wide(self) -> bool:
        """Whether the tensor varies along the columns."""
        return self.kind in ("full", "row")

    @property
    def tall(self) -> bool:
        """Whether the tensor varies along the rows."""
        return self.kind in ("full", "col")


def operands(chain: Chain) -> tuple[ChainTensor, ...]:
    """Return the chain's operands, in order."""
    pairs = zip(chain.operands, chain.operand_types, strict=True)
    return tuple(ChainTensor(i, dtype, kind) for i, (kind, dtype) in enumerate(pairs))


def results(chain: Chain) -> tuple[ChainTensor, ...]:
    """Return the chain's results, in order."""
    listed = chain_source.chain_results(chain)
    return tuple(ChainTensor(i, r.dtype, expression=r.expression) for i, r in enumerate(listed))


def vector_length(*dtypes: DType, width: int = _BYTES) -> int:
    """Return how many elements a thread processes at a time.

    They have ``width`` bytes in the narrowest float type among ``dtypes``, or in float32.
    """
    floats = [d.size for d in dtypes if d in (DType.F32, DType.F16, DType.BF16)]
    return int(width / min(floats, default=DType.F32.size))


def chain_template_parameters(
    chain: Chain,
    fused_sums: bool = True,
    near: bool = False,
    fused_near: bool = False,
    rounded_by_sums: bool = False,
) -> dict[str, Any]:
    """Return the parameters of ``templates/chain.h``.

    If all results are floats of 16 bits or fewer, functions such as exp use a cheaper
    approximation, whose error is below one unit in the last place of fp16, and sums are fused
    with a product if ``fused_sums``.  With ``near``, roundings that small bounds follow are two
    additions, of which ``fused_near`` fuses the first with a product, and the first operand is a
    sum in int32: divisions of finite numbers have no test, for which rows are bounded
    (``bounded_rows``).  With ``rounded_by_sums``, only these roundings change.
    """
    finite = finite_divisions(chain) if near else frozenset[int]()
    fused = _divisions(chain, finite) | (
        near_roundings(chain, fused_near) if near or fused_near or rounded_by_sums else {}
    )
    narrow = (*HALVES, *FLOATS8)
    if chain.result_types and all(d in narrow for d in chain.result_types):
        chain = replace(chain, fast_math=True)
        fused |= _fused_sums(chain) if fused_sums else {}
    return {
        "text": chain.text,
        "operands": operands(chain),
        "results": results(chain),
        "steps": chain_source.chain_statements(chain, fused),
        "bounded_rows": bool(finite),
    }


def _divisions(chain: Chain, finite: Collection[int]) -> dict[int, str]:
    """Return the divisions of a chain by a constant, as C: multiplications by its inverse.

    Those in ``finite`` divide no infinity.
    """
    found = dict[int, str]()
    for i, step in enumerate(chain.steps):
        by = step.args[-1]
        if step.op == "div" and isinstance(by, float) and _LEAST_DIVISOR < abs(by) < _MOST_DIVISOR:
            inverse = float(np.float32(1) / np.float32(by))
            dividend, *both = (
                chain_source.value(chain, ref) for ref in (step.args[0], by, inverse)
            )
            divided = "divided_finite" if i in finite else "divided"
            found[i] = f"{divided}({', '.join((dividend, *both))})"
            if math.frexp(by)[0] in (0.5, -0.5):  # the inverse is exact
                found[i] = f"{dividend} * {both[1]}"
    return found


def near_roundings(chain: Chain, fused: bool = False) -> dict[int, str]:
    """Return the roundings of a chain that a saturation between small bounds follows, as C.

    Adding 1.5 · 2^23 rounds numbers below 2^22 to integers, ties to even, in fewer cycles than the
    conversion of a number takes; larger ones stay as large, so that their bound is right too.
    """
    first, found = len(chain.operands), dict[int, str]()
    for i, step in enumerate(chain.steps[:-1]):
        after = chain.steps[i + 1]
        if step.op != "round" or after.op != "saturate" or after.args[0] != first + i:
            continue
        if all(isinstance(n, float) and abs(n) < _ROUNDED_BY_SUMS for n in after.args[1:]):
            sum_of, made = chain_source.value(chain, step.args[0]), i - 1
            sum_of = f"({sum_of} + 0x1.8p23f)"
            if fused and step.args[0] == first + made and chain.steps[made].op == "mul":
                factors = (chain_source.value(chain, ref) for ref in chain.steps[made].args)
                sum_of = f"fmaf({', '.join(factors)}, 0x1.8p23f)"
            found[i] = f"{sum_of} - 0x1.8p23f"
    return found


def _fused_sums(chain: Chain) -> dict[int, str]:
    """Return the sums of a chain that are computed with one of their products at once, as C."""
    first, found = len(chain.operands), dict[int, str]()
    for i, step in enumerate(chain.steps):
        if step.op != "add":
            continue
        for product, other in (step.args, step.args[::-1]):
            if isinstance(product, int) and product >= first:
                made = chain.steps[product - first]
                if made.op == "mul":
                    factors = (chain_source.value(chain, ref) for ref in (*made.args, other))
                    found[i] = f"fmaf({', '.join(factors)})"
                    break
    return found


def is_whole_byte(chain: Chain) -> bool:
    """Whether the only result of a chain is a whole number within the bounds of its 8 bits."""
    (kind, *more), last = chain.result_types, chain.results[0] - len(chain.operands)
    bounds = None if more else _BOUNDS.get(kind)
    if bounds is None or last < 1 or chain.steps[last].op != "saturate":
        return False
    value, low, high = chain.steps[last].args
    if not isinstance(value, int) or value < len(chain.operands):
        return False
    before = chain.steps[value - len(chain.operands)]
    if before.op == "add" and isinstance(before.args[1], float) and before.args[1].is_integer():
        inner = before.args[0]
        if not isinstance(inner, int) or inner < len(chain.operands):
            return False
        before = chain.steps[inner - len(chain.operands)]
    return before.op == "round" and bounds[0] <= low <= high <= bounds[1]
