"""Products in 8-bit integers and dynamic quantization, and what NumPy makes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.runtime.support import Case, normal, operator_case, spec
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.panels import INT8, INT8_ZEROS, pack_int8
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.dynamic_quantize import (
    HIGH,
    LOW,
    PARAMETERS,
    QUANTIZE,
    DynamicQuantizeParams,
)
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.int8_matmul import IntegerOperand
from tracea_graph.ops.matmul import MatMulParams
from tracea_graph.ops.quantize_rows import QuantizeRowsParams

__all__ = ["INT8_CHAINS", "int8_cases"]

Array = npt.NDArray[Any]
_NUMPY = {DType.U8: np.uint8, DType.I8: np.int8}
REQUANTIZE = Chain(
    ("full", "row", "row"),
    (
        Step("mul", (0, 1)), Step("add", (3, 2)), Step("round", (4,)), Step("add", (5, 9.0)),
        Step("saturate", (6, -128.0, 127.0)),
    ),
    (7,), (), (DType.I8,),
)  # fmt: skip

ONCE = (Step("mul", (0, 1)), Step("add", (3, 2)), Step("round", (4,)))
TWICE = (
    Step("mul", (0, 1)), Step("round", (3,)), Step("saturate", (4, -121.0, 134.0)),
    Step("mul", (5, 0.25)), Step("add", (2, 6)), Step("div", (7, 0.3)), Step("round", (8,)),
)  # fmt: skip


def to_bytes(steps: tuple[Step, ...], more: tuple[Step, ...] = ()) -> Chain:
    """A chain that stores what ``steps`` round, or a GELU of that, as bytes."""
    last = 2 + len(steps)
    if more:
        last, steps = last + len(more), (*steps, *more)
    steps = (*steps, Step("add", (last, 9.0)), Step("saturate", (last + 1, 0.0, 255.0)))
    return Chain(("full", "row", "row"), steps, (last + 2,), (), (DType.U8,))


def gelu(last: int) -> tuple[Step, ...]:
    return (
        Step("saturate", (last, -100.0, 155.0)), Step("mul", (last + 1, 0.05)),
        Step("gelu", (last + 2,)), Step("div", (last + 3, 0.03)), Step("round", (last + 4,)),
    )  # fmt: skip


BYTES = (to_bytes(TWICE), to_bytes(ONCE, gelu(5)), to_bytes(TWICE, gelu(9)))
"""Bytes that kernels make of sums in their registers: rounded twice, looked up, or both."""

INT8_CHAINS = (REQUANTIZE, *BYTES, HIGH, LOW, PARAMETERS, QUANTIZE)


def drawn(dtype: DType, *shape: int) -> Array:
    bounds = np.iinfo(_NUMPY[dtype])
    rng = np.random.default_rng([*shape, dtype.onnx])
    return rng.integers(bounds.min, bounds.max, shape, _NUMPY[dtype], endpoint=True)


def integers_case(
    m: int, k: int, n: int, dtype: DType = DType.U8, zero: int | None = 5, own: bool = False,
    chain: Chain | None = None, parts: tuple[int, ...] = (),
) -> Case:  # fmt: skip
    """The program the passes write for one product of integers."""
    layout = INT8_ZEROS if own else INT8
    params = GemmParams(
        k, n, layout, False, chain, splits=parts, integers=IntegerOperand(dtype, zero)
    )
    weight = pack_int8(drawn(DType.I8, k, n), drawn(DType.I8, n) if own else None)
    given = [np.array(77, _NUMPY[dtype])] if zero is None else []
    # sums of about 1e4 come to the range of the result
    rows = [np.float32(1e-3) * abs(normal(n, seed=3)), normal(n, seed=4)] if chain else []
    feeds = (drawn(dtype, m, k), weight, *given, *rows)
    specs = [
        spec("m", k, dtype=dtype), spec(*weight.shape, dtype=DType.I8),
        *([spec(dtype=dtype)] if given else []), *([spec(n), spec(n)] if chain else []),
    ]  # fmt: skip
    words = [dtype.short, "given" if zero is None else "", "zeros" if own else ""]
    which = f"bytes{BYTES.index(chain)}" if chain in BYTES else "chain" if chain else ""
    words += [which, "parts" if parts else ""]
    name = "_".join(("int8", f"{m}x{k}x{n}", *filter(None, words)))
    # the epilogue is computed in float32, as the kernel does
    operands = [*feeds[: 2 + len(given)], *rows]
    case = operator_case(name, "FusedGemm", params, specs, feeds, operands)
    if chain:
        (acc,) = replace(params, epilogue=None).reference(operands[: 2 + len(given)])
        (y,) = chain.reference([acc.astype(np.float32), *rows])
        case = replace(case, expected=(y.astype(np.float64),))
    return case


KEYS = ((0, 2, 1, 3), (0, 2, 3, 1))
VALUES = ((), (0, 2, 1, 3))
"""Orders of axes of queries and keys, and of weights and values, as attention stores them."""


def bytes_case(
    name: str, a: tuple[int, ...], b: tuple[int, ...], types: tuple[DType, DType],
    zeros: tuple[int, int], chain: Chain | None = None, symbol: str = "", **how: Any,
) -> Case:  # fmt: skip
    """The program the passes write for a product of two computed matrices of integers.

    ``symbol`` is the number of rows of the first one, if programs do not know it.
    """
    pair = [IntegerOperand(t, z) for t, z in zip(types, zeros, strict=True)]
    params = MatMulParams(epilogue=chain, integers=(pair[0], pair[1]), **how)
    feeds = [drawn(t, *shape) for t, shape in zip(types, (a, b), strict=True)]
    plain = replace(params, epilogue=None)
    specs = [spec(*f.shape, dtype=t) for f, t in zip(feeds, types, strict=True)]
    if symbol:
        specs[0] = spec(symbol, *a[1:], dtype=types[0])
    (acc,) = plain.reference(feeds)
    if chain is None:
        return operator_case(f"matmul_bytes_{name}", "FusedMatMul", params, specs, feeds, feeds)
    rows = [np.float32(1e-3) * abs(normal(acc.shape[-1], seed=3)), normal(acc.shape[-1], seed=4)]
    given = [*feeds, *rows]
    specs += [spec(*r.shape) for r in rows]
    case = operator_case(f"matmul_bytes_{name}", "FusedMatMul", params, specs, given, given)
    (y,) = chain.reference([acc.astype(np.float32), *rows])
    return replace(case, expected=(y.astype(np.float64),))


def too_deep() -> Case:
    """A product whose sums may not fit 32 bits, as a run finds out."""
    shapes = (1, 32769), (32769, 2)
    made = bytes_case("too_deep", *shapes, (DType.U8, DType.U8), (0, 0))
    return replace(made, expected=(), error="sums of 32769 terms, more than 32768")


def unaligned() -> Case:
    """A product whose second item begins one byte earlier than a multiple of four."""
    made = bytes_case("unaligned", (2, 37, 96), (2, 96, 50), (DType.U8, DType.U8), (127, 132))
    (call,), (x, w) = made.program.calls, made.feeds
    own = call.views[0]
    assert own is not None and own.strides == (3552, 96, 1)
    moved = replace(own, strides=(3551, 96, 1))
    program = replace(made.program, calls=(replace(call, views=(moved, *call.views[1:])),))
    read = np.lib.stride_tricks.as_strided(x, strides=moved.strides).astype(np.float64)
    return replace(made, program=program, expected=((read - 127) @ (w - np.float64(132)),))


def bytes_cases() -> tuple[Case, ...]:
    u8, i8 = DType.U8, DType.I8
    keys = {"a_perm": KEYS[0], "b_perm": KEYS[1]}
    values = {"b_perm": VALUES[1]}
    heads = {**keys, "heads": (3, 3)}
    return (
        *(
            bytes_case(f"{m}x{k}x{n}_{s.short}{t.short}", (m, k), (k, n), (s, t), zeros)
            for m, k, n in ((1, 1, 1), (3, 7, 33), (70, 66, 97), (5, 8, 16))
            for s, t, zeros in (
                (u8, u8, (3, 250)), (u8, i8, (128, 0)), (i8, i8, (-5, 9)), (i8, u8, (0, 128)),
            )
        ),
        bytes_case("any_rows", (9, 70), (70, 33), (u8, i8), (9, 0), symbol="m"),
        bytes_case("of_keys", (2, 37, 96), (2, 50, 96), (u8, u8), (127, 132), **heads),
        bytes_case("of_split_keys", (2, 37, 3, 32), (2, 50, 3, 32), (u8, u8), (1, 2), **keys),
        bytes_case("of_values", (2, 3, 37, 50), (2, 50, 3, 32), (u8, u8), (0, 134), **values),
        bytes_case("of_few_columns", (2, 3, 37, 50), (2, 50, 3, 5), (u8, i8), (0, 4), **values),
        bytes_case("turned", (70, 60), (37, 70), (u8, u8), (9, 8), a_perm=(1, 0), b_perm=(1, 0)),
        bytes_case("shared", (4, 70, 60), (1, 60, 40), (u8, u8), (9, 8)),
        bytes_case("repeated", (1, 70, 60), (4, 60, 40), (i8, u8), (9, 8)),
        bytes_case("chain", (2, 70, 61), (2, 61, 150), (u8, u8), (0, 134), REQUANTIZE),
        bytes_case("deep", (130, 6000), (6000, 40), (u8, u8), (0, 134)),
        too_deep(),
        unaligned(),
        bytes_case("without_terms", (3, 0), (0, 5), (u8, u8), (7, 9)),
    )  # fmt: skip


def quantize_case(name: str, x: Array) -> Case:
    shape = ("m", *x.shape[1:])
    params = DynamicQuantizeParams()
    return operator_case(
        f"dynamic_quantize_{name}", "FusedDynamicQuantize", params, [spec(*shape)], (x,), [x]
    )


def quantize_rows_case(name: str, x: Array, scaled: bool = False) -> Case:
    shape, feeds = ("m", *x.shape[1:]), (x,)
    if scaled:
        feeds = (x, abs(normal(x.shape[-1], seed=3)) + np.float32(0.1))
    params = QuantizeRowsParams(scaled)
    specs = [spec(*shape), *(spec(*f.shape) for f in feeds[1:])]
    return operator_case(
        f"quantize_rows_{name}", "FusedQuantizeRows", params, specs, feeds, list(feeds)
    )


def int8_cases() -> tuple[Case, ...]:
    large = normal(37, 515, seed=1)
    return (
        *(
            integers_case(m, k, n)
            for m, k, n in ((1, 1, 1), (3, 7, 33), (130, 516, 97), (16, 8192, 48))
        ),
        integers_case(37, 64, 72, DType.I8, -3),
        integers_case(37, 64, 72, DType.U8, None),
        integers_case(37, 66, 72, DType.I8, None, own=True),
        integers_case(70, 600, 200, own=True),
        integers_case(70, 600, 200, chain=REQUANTIZE),
        *(integers_case(m, 64, n, chain=c) for m, n in ((70, 200), (3, 33)) for c in BYTES),
        integers_case(37, 24, 160, parts=(48, 16, 96)),
        *bytes_cases(),
        quantize_case("normal", large),
        quantize_rows_case("normal", large),
        quantize_rows_case("scaled", large, scaled=True),
        quantize_rows_case("zero", np.zeros((3, 5), np.float32)),
        quantize_case("positive", abs(large[:, :3])),
        quantize_case("zero", np.zeros((3, 5), np.float32)),
        quantize_case("nan", np.where(large > 3.0, np.float32(np.nan), large)),
        quantize_case("many", normal(300, 700, seed=2)),
    )
