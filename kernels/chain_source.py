"""Elementwise chains as C++: one statement per step over the vector types ``vf`` and ``vm``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from tracea_graph.ir import DType
from tracea_graph.ops.chain import INTEGERS, Chain, Ref, Step

__all__ = [
    "FLAGS",
    "ChainOperand",
    "ChainResult",
    "chain_operands",
    "chain_results",
    "chain_statements",
    "needed_header_sections",
    "value",
    "vectors_to_unroll",
]

FLAGS = ("-fschedule-insns", "-fsched-pressure")
"""Let gcc interleave the instructions of the vectors that :func:`vectors_to_unroll` unrolls."""

_LONG = 8
"""Number of vector instructions from which on latency, not memory, bounds a chain."""

StepSource = tuple[str, tuple[str, ...]]
"""A C++ expression over the arguments, and the vector header sections it needs."""

_LOG = ("mantissa", "log1", "log")
_POW = ("double", "mantissa", "mask", "pow", "round")
_TURNS = ("any", "turns")

_SPELLING: Mapping[str, StepSource] = MappingProxyType(
    {
        "add": ("{0} + {1}", ()),
        "sub": ("{0} - {1}", ()),
        "mul": ("{0} * {1}", ()),
        "div": ("{0} / {1}", ()),
        "max": ("v_max({0}, {1})", ("nan_max",)),
        "min": ("v_min({0}, {1})", ("nan_max",)),
        "pow": ("v_pow({0}, {1})", _POW),
        "neg": ("-{0}", ()),
        "abs": ("abs({0})", ()),
        "sign": ("v_sign({0})", ("sign",)),
        "floor": ("floor({0})", ("round",)),
        "ceil": ("ceil({0})", ("round",)),
        "round": ("round_even({0})", ("round",)),
        "int32": ("v_whole({0}, set1(0x1p31f))", ("round", "whole")),
        "int64": ("v_whole({0}, set1(0x1p63f))", ("round", "whole")),
        "sqrt": ("sqrt({0})", ()),
        "reciprocal": ("set1(1.0f) / {0}", ()),
        "exp": ("v_exp({0})", ("exp",)),
        "log": ("v_log({0})", _LOG),
        "erf": ("v_erf({0})", ("erf",)),
        "sin": ("v_sin({0}, 0)", _TURNS),
        "cos": ("v_sin({0}, 1)", _TURNS),
        "tanh": ("v_tanh({0})", ("tanh",)),
        "sigmoid": ("v_sigmoid({0})", ("sigmoid",)),
        "relu": ("max(set1(0.0f), {0})", ()),
        "softplus": ("v_softplus({0})", ("exp", "log1", "softplus")),
        "softsign": ("{0} / (set1(1.0f) + abs({0}))", ()),
        "clip": ("min({2}, max({1}, {0}))", ()),
        "saturate": ("min({2}, max({0}, {1}))", ()),
        "prelu": ("select(less({0}, set1(0.0f)), {0} * {1}, {0})", ()),
        "leaky_relu": ("select(less({0}, set1(0.0f)), {0} * {1}, {0})", ()),
        "elu": ("v_elu({0}, {1})", ("exp", "elu")),
        "selu": ("{2} * v_elu({0}, {1})", ("exp", "elu")),
        "celu": ("v_celu({0}, {1})", ("exp", "elu")),
        "hard_sigmoid": ("v_hard_sigmoid({0}, {1}, {2})", ("hard",)),
        "hard_swish": ("{0} * v_hard_sigmoid({0}, set1(0x1.555556p-3f), set1(0.5f))", ("hard",)),
        "mish": ("v_mish({0})", ("exp", "mish")),
        "thresholded_relu": ("select(less({1}, {0}), {0}, set1(0.0f))", ()),
        "gelu": ("v_gelu({0})", ("gelu",)),
        "gelu_tanh": ("v_gelu_tanh({0})", ("exp", "gate", "gelu_tanh")),
        "silu": ("gated({0}, {0})", ("exp", "gate")),
        "less": ("less({0}, {1})", ()),
        "less_equal": ("at_most({0}, {1})", ("mask",)),
        "equal": ("equal({0}, {1})", ("mask",)),
        "is_nan": ("is_nan({0})", ()),
        "is_inf": ("equal(abs({0}), set1(__builtin_inff()))", ("mask",)),
        "and": ("both({0}, {1})", ("mask",)),
        "or": ("either({0}, {1})", ("mask",)),
        "xor": ("differ({0}, {1})", ("mask",)),
        "not": ("invert({0})", ("mask",)),
        "where": ("select({0}, {1}, {2})", ()),
        "number": ("select({0}, set1(1.0f), set1(0.0f))", ()),
        "nonzero": ("invert(equal({0}, set1(0.0f)))", ("mask",)),
    }
)

_POWERS: Mapping[float, StepSource] = MappingProxyType(
    {
        2.0: ("{0} * {0}", ()),
        3.0: ("{0} * {0} * {0}", ()),
        1.0: ("{0}", ()),
        0.5: ("v_root({0})", ("root",)),
        -0.5: ("set1(1.0f) / v_root({0})", ("root",)),
        -1.0: ("set1(1.0f) / {0}", ()),
        -2.0: ("(set1(1.0f) / {0}) * (set1(1.0f) / {0})", ()),
    }
)
"""Powers by literal exponent: errors up to 1.9 ulp, and the special values of ``pow``."""

_FAST_MATH: Mapping[str, StepSource] = MappingProxyType(
    {
        "gelu": ("v_gelu_fast({0})", ("gelu_fast",)),
        "gelu_tanh": ("v_gelu_tanh_fast({0})", ("gate_fast", "round")),
        "silu": ("gated_fast({0}, {0})", ("gate_fast", "round")),
    }
)
"""Cheaper expressions for fast-math chains and bf16 results; errors are below one bf16 ulp."""

_LOADS: Mapping[DType, tuple[str, str, str]] = MappingProxyType(
    {
        DType.F32: ("float", "load", "set1({})"),
        DType.BOOL: ("uint8_t", "load_mask", "set_mask({} != 0)"),
        DType.I32: ("int32_t", "load_int", "set1((float){})"),
        DType.I64: ("int64_t", "load_int", "set1((float){})"),
        DType.U8: ("uint8_t", "load_int", "set1((float){})"),
        DType.I8: ("int8_t", "load_int", "set1((float){})"),
    }
)
"""C type, vector load function, and expression that broadcasts one element."""

_STORES: Mapping[DType, str] = MappingProxyType(
    {DType.BOOL: "store_mask", DType.BF16: "store_bf16"}
)
"""Vector store functions of types other than fp32 and integers."""


@dataclass(frozen=True)
class ChainOperand:
    """The C++ type and load expressions of a chain operand of some kind and element type."""

    kind: str
    dtype: DType

    @property
    def wide(self) -> bool:
        """Whether the operand varies along the columns."""
        return self.kind in ("full", "row")

    @property
    def tall(self) -> bool:
        """Whether the operand varies along the rows."""
        return self.kind in ("full", "col")

    @property
    def element(self) -> str:
        return _LOADS[self.dtype][0]

    @property
    def vector(self) -> str:
        return "vm" if self.dtype is DType.BOOL else "vf"

    def one(self, pointer: str) -> str:
        """Expression that broadcasts the element at ``pointer``."""
        return _LOADS[self.dtype][2].format(f"*{pointer}")

    def load(self, pointer: str, tail: bool) -> str:
        """Return the expression that loads a vector, or its first ``n`` lanes in a row's tail."""
        rest = "" if not tail else ", first(n)" if self.dtype is DType.F32 else ", n"
        return f"{_LOADS[self.dtype][1]}({pointer}{rest})"


@dataclass(frozen=True)
class ChainResult:
    """One result of an elementwise chain, for the C++ template: its expression and type.

    If ``zero`` is given, the store rounds the expression and then adds ``zero``.
    """

    expression: str
    dtype: DType
    zero: int | None = None

    @property
    def element(self) -> str:
        return "uint16_t" if self.dtype is DType.BF16 else _LOADS[self.dtype][0]

    @property
    def vector(self) -> str:
        return "vm" if self.dtype is DType.BOOL else "vf"

    def store(self, pointer: str, value: str, tail: bool) -> str:
        """Return the statement that stores a vector, or its first ``n`` lanes in a row's tail."""
        if self.zero is not None:
            return f"store_rounded({pointer}, {value}, {self.zero}{', n' if tail else ''})"
        if self.dtype is DType.F32:
            name, last = "store", "first(n)"
        else:
            name, last = _STORES.get(self.dtype, "store_int"), "n"
        return f"{name}({pointer}, {value}{f', {last}' if tail else ''})"


def needed_header_sections(chain: Chain) -> frozenset[str]:
    """Sections of the vector headers that the generated code of a chain needs."""
    needs = {section for step in chain.steps for section in _source_of(chain, step)[1]}
    types = {*chain.operand_types, *chain.result_types}
    if DType.BOOL in types:
        needs |= {"bytes", "mask"}
    if types & set(INTEGERS):
        needs |= {"ints"}
    if DType.BF16 in types:
        needs |= {"bf16"}
    return frozenset(needs)


def vectors_to_unroll(chain: Chain, row: int) -> int:
    """Return how many vectors a chain's loop processes per iteration.

    Long chains are bound by latency: those of few operands process ``row`` vectors, the number in
    a row of a GEMM register tile.  Other chains process one.
    """
    return row if chain.flops >= _LONG and len(chain.operands) <= 4 else 1


def chain_operands(chain: Chain) -> list[ChainOperand]:
    """The chain's operands, in order."""
    return [ChainOperand(k, d) for k, d in zip(chain.operands, chain.operand_types, strict=True)]


def chain_statements(chain: Chain, spelled: Mapping[int, str] = MappingProxyType({})) -> list[str]:
    """Return a C++ statement per step; operand ``i`` is ``x<i>``, step ``i`` is ``v<i>``.

    ``spelled`` maps the numbers of some steps to the expressions to use for them.
    """
    lines = []
    for i, step in enumerate(chain.steps):
        vector = "vm" if chain.types[len(chain.operands) + i] == "b" else "vf"
        expression = spelled.get(i) or _expression(chain, step)
        lines.append(f"const {vector} v{i} = {expression};")
    return lines


def chain_results(
    chain: Chain, spelled: Mapping[int, tuple[str, int | None]] = MappingProxyType({})
) -> list[ChainResult]:
    """Return the chain's results, in order.

    ``spelled`` maps the numbers of some results to the expression to use, and to the ``zero`` of
    its :class:`ChainResult` (None if the store does not round).
    """
    pairs = enumerate(zip(chain.results, chain.result_types, strict=True))
    return [
        ChainResult(spelled[i][0], dtype, spelled[i][1])
        if i in spelled
        else ChainResult(value(chain, ref), dtype)
        for i, (ref, dtype) in pairs
    ]


def _source_of(chain: Chain, step: Step) -> StepSource:
    exponent = step.args[-1]
    if step.op in _FAST_MATH and (chain.fast_math or set(chain.result_types) == {DType.BF16}):
        return _FAST_MATH[step.op]
    if step.op == "pow" and isinstance(exponent, float) and exponent in _POWERS:
        return _POWERS[exponent]
    return _SPELLING[step.op]


def _expression(chain: Chain, step: Step) -> str:
    if step.op in ("max", "min") and (args := _literal_first(step)):
        # The vector instruction returns its second operand when either is NaN.
        return f"{step.op}({value(chain, args[0])}, {value(chain, args[1])})"
    return _source_of(chain, step)[0].format(*(value(chain, a) for a in step.args))


def _literal_first(step: Step) -> tuple[Ref, ...] | None:
    """The two arguments with a non-NaN literal first, or None if neither is such a literal."""
    numbers = [isinstance(a, float) and not math.isnan(a) for a in step.args]
    return (step.args if numbers[0] else step.args[::-1]) if any(numbers) else None


def value(chain: Chain, ref: Ref) -> str:
    """Return the C++ expression of an operand, a step or a literal."""
    if isinstance(ref, float):
        return f"set1({_literal(ref)})"
    count = len(chain.operands)
    return f"x{ref}" if ref < count else f"v{ref - count}"


def _literal(value: float) -> str:
    """C++ literal of the fp32 number nearest to ``value``."""
    with np.errstate(over="ignore"):
        single = float(np.float32(value))
    if math.isnan(single):
        return '__builtin_nanf("")'
    if math.isinf(single):
        return "__builtin_inff()" if single > 0 else "-__builtin_inff()"
    return single.hex() + "f"
