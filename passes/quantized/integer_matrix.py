"""Build products of a computed tensor of 8-bit integers with a constant 8-bit matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tracea_graph.ir import Array, DType, Weight
from tracea_graph.ops.chain import FLOATS8
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.int8_matmul import MAX_DEPTH, IntegerOperand
from tracea_graph.ops.weight_layouts import KN, NK
from tracea_graph.passes.quantized.scale_checks import are_zero
from tracea_graph.passes.region_helpers import attribute
from tracea_graph.reason_codes import Code, Reason, not_constant_reason
from tracea_graph.rewrite import Match
from tracea_graph.ttg import TileGraph

__all__ = [
    "BYTES",
    "IntegerGemm",
    "check_cast_to_float32",
    "column_zeros",
    "integer_gemm",
    "left_zero",
    "signed_matrix",
    "weight_of_array",
]  # fmt: skip

BYTES = (DType.U8, DType.I8)


@dataclass
class IntegerGemm:
    """A product of integers: its parameters, its operands, and the weights to add."""

    params: GemmParams
    operands: tuple[str, ...]
    weights: dict[str, Weight] = field(default_factory=dict)


def integer_gemm(
    graph: TileGraph, x: str, w: str, zero: str, zeros: str, transposed: bool = False
) -> IntegerGemm | str:
    """Return the product ``(x − zero) · (W − zeros)``, or why it cannot be built.

    An empty ``zero`` or ``zeros`` stands for 0.  W is ``[K, N]``, or ``[N, K]`` if ``transposed``.
    A uint8 W is stored as int8: 128 is subtracted from it and from its zero points.
    """
    spec, weight = graph.spec(x), graph.weight(w)
    if weight is None:
        return not_constant_reason(w)
    if spec.dtype in FLOATS8 and weight.dtype in FLOATS8:
        return _float_gemm(graph, (x, w), (zero, zeros), transposed)
    if spec.dtype not in BYTES or weight.dtype not in BYTES:
        return Reason("the operands are not 8-bit integers", Code.UNSUPPORTED_DTYPE)
    if not spec.rank or len(weight.shape) != 2 or 0 in weight.shape:
        return Reason("the operands are not matrices of known rank", Code.UNKNOWN_SHAPE)
    k, n = weight.shape[::-1] if transposed else weight.shape
    if k > MAX_DEPTH:
        return f"sums of {k} products may not fit 32 bits"
    own = column_zeros(graph, weight, zeros, n)
    if isinstance(own, str):
        return own
    left = left_zero(graph, x, zero)
    if isinstance(left, str):
        return left
    signed, added = signed_matrix(weight), own is not None and bool(own.any())
    integers = IntegerOperand(spec.dtype, left, added)
    params = GemmParams(k, n, NK if transposed else KN, integers=integers)
    made = {} if signed is weight else {signed.name: signed}
    operands = [x, signed.name, *([zero] if left is None else [])]
    if added:
        assert own is not None
        name = f"{signed.name}_zeros_{zeros or 128}"
        made[name] = Weight(name, DType.I8, (n,), weight_of_array(own))
        operands.append(name)
    return IntegerGemm(params, tuple(operands), made)


def _float_gemm(
    graph: TileGraph, operands: tuple[str, str], zeros: tuple[str, str], transposed: bool
) -> IntegerGemm | str:
    """Return the product of 8-bit floats, or why it cannot be built."""
    spec, weight = graph.spec(operands[0]), graph.weights[operands[1]]
    if not spec.rank or len(weight.shape) != 2 or 0 in weight.shape:
        return Reason("the operands are not matrices of known rank", Code.UNKNOWN_SHAPE)
    if not all(are_zero(graph, zero) for zero in zeros):
        return "a zero point of 8-bit floats is not 0"
    k, n = weight.shape[::-1] if transposed else weight.shape
    if k > MAX_DEPTH:
        return f"it has more than {MAX_DEPTH} rows of its matrix"
    assert spec.dtype is not None
    params = GemmParams(k, n, NK if transposed else KN, integers=IntegerOperand(spec.dtype))
    return IntegerGemm(params, operands)


def left_zero(graph: TileGraph, x: str, zero: str) -> int | str | None:
    """Return the zero point of x; None if it is computed at run time.

    Returns a reason if it is not one number of x's type.  An empty ``zero`` stands for 0.
    """
    spec = graph.spec(zero) if zero else None
    if spec is None:
        return 0
    if spec.dtype is not graph.spec(x).dtype or spec.shape not in ((), (1,)):
        return "the zero point of x is not one number of its type"
    weight = graph.weight(zero)
    return None if weight is None else int(weight.array().reshape(()))


def column_zeros(graph: TileGraph, weight: Weight, zeros: str, n: int) -> Array | str | None:
    """Return the zero points of a matrix's columns as int8, or why they do not fit.

    None if there are none.  Zero points of type uint8 are shifted by −128, like the matrix.
    """
    given = graph.weight(zeros) if zeros else None
    if zeros and given is None:
        return not_constant_reason(zeros)
    if given is not None and (
        given.dtype is not weight.dtype or given.shape not in ((), (1,), (n,))
    ):
        return "the matrix's zero points are not one number, or one per column, of its type"
    if given is None and weight.dtype is DType.I8:
        return None
    own = np.zeros((), np.int16) if given is None else given.array().astype(np.int16)
    shifted = own - 128 if weight.dtype is DType.U8 else own
    return np.broadcast_to(shifted.reshape(-1), (n,)).astype(np.int8)


def signed_matrix(weight: Weight) -> Weight:
    """Return an int8 matrix: the weight itself, or a uint8 weight minus 128."""
    if weight.dtype is DType.I8:
        return weight
    return Weight(
        f"{weight.name}_signed", DType.I8, weight.shape,
        lambda: (weight.load().astype(np.int16) - 128).astype(np.int8),
    )  # fmt: skip


def weight_of_array(array: Array) -> Callable[[], Array]:
    return lambda: array


def check_cast_to_float32(m: Match) -> str | None:
    """Return why a rule for int32 sums behind a cast does not apply, or None if it does."""
    to_float = attribute(m.root, "to", 0) == DType.F32.onnx
    return None if to_float else "its int32 result is not cast to float32"
