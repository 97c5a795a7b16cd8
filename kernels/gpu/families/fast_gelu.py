"""GELUs that end an epilogue and are computed in fp16, two at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from tracea_graph.ir import DType
from tracea_graph.ops.chain import FLOAT8, Chain

__all__ = ["GELU_PAIRS", "last_gelu", "rounding_after", "without_last"]

GELU_PAIRS: Mapping[str, tuple[str, str]] = MappingProxyType({
    "gelu": ("0x3a663a66u", "0x28732873u"), "gelu_tanh": ("0x3a623a62u", "0x28912891u"),
})  # fmt: skip
"""Factors a and b, each twice in fp16, with which x / 2 (1 + tanh(x (a + b x²))) is a GELU.

0.8 and 0.03475 fit the one by the error function within 3e-4; the others define it.
"""
_LEAST, _LARGEST = 2.0**-14, 2.0**15
"""Bounds of factors in fp16: the smallest normal number, and the largest power of 2."""


def last_gelu(chain: Chain) -> tuple[str, str] | None:
    """Return the factors of a GELU that ends a chain and can be computed in fp16.

    The multiplication of :func:`rounding_after` may follow it.
    """
    last, small = len(chain.operands) + len(chain.steps) - 1, bool(rounding_after(chain))
    if chain.result_types != (DType.F16,) and not small:
        return None
    if chain.results != (last,) or len(chain.steps) <= small:
        return None
    if small and chain.steps[-1].args[0] != last - 1:
        return None
    return GELU_PAIRS.get(chain.steps[-1 - small].op)


def rounding_after(chain: Chain) -> str:
    """Return the factor with which a chain ends, twice in fp16 as C, if its result is in 8 bits.

    Returns "" for other chains, and if fp16 does not hold the factor exactly.
    """
    if chain.result_types != (FLOAT8,) or not chain.steps or chain.steps[-1].op != "mul":
        return ""
    factor = chain.steps[-1].args[1]
    if not isinstance(factor, float) or not _LEAST <= factor <= _LARGEST:
        return ""
    half = np.float16(factor)
    return f"0x{int(half.view(np.uint16)) * 0x10001:08x}u" if float(half) == factor else ""


def without_last(chain: Chain, count: int) -> Chain:
    """Return a chain without its last steps; its result is the first operand of the first one."""
    kept = len(chain.steps) - count
    operand = chain.steps[kept].args[0]
    assert isinstance(operand, int)
    return replace(chain, steps=chain.steps[:kept], results=(operand,))
