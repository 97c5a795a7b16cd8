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


INT8_CHAINS = (REQUANTIZE, HIGH, LOW, PARAMETERS, QUANTIZE)


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
    words += ["chain" if chain else "", "parts" if parts else ""]
    name = "_".join(("int8", f"{m}x{k}x{n}", *filter(None, words)))
    # the epilogue is computed in float32, as the kernel does
    operands = [*feeds[: 2 + len(given)], *rows]
    case = operator_case(name, "FusedGemm", params, specs, feeds, operands)
    if chain:
        (acc,) = replace(params, epilogue=None).reference(operands[: 2 + len(given)])
        (y,) = chain.reference([acc.astype(np.float32), *rows])
        case = replace(case, expected=(y.astype(np.float64),))
    return case


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
        integers_case(37, 24, 160, parts=(48, 16, 96)),
        quantize_case("normal", large),
        quantize_rows_case("normal", large),
        quantize_rows_case("scaled", large, scaled=True),
        quantize_rows_case("zero", np.zeros((3, 5), np.float32)),
        quantize_case("positive", abs(large[:, :3])),
        quantize_case("zero", np.zeros((3, 5), np.float32)),
        quantize_case("nan", np.where(large > 3.0, np.float32(np.nan), large)),
        quantize_case("many", normal(300, 700, seed=2)),
    )
