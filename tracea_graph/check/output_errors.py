"""Measure the distance between arrays, and the distance allowed.

Distances are shares of ``max|y|`` of the reference, which has one meaning for logits,
probabilities and pixels.  Discrete results are equal or not, except an index chosen by score,
which may differ where scores are within tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from tracea_graph.check.worker_process import Array
from tracea_graph.config import TOLERANCE
from tracea_graph.ir import DType
from tracea_graph.ttg.region_graph import TileGraph

__all__ = [
    "NO_INDEX_OUTPUTS",
    "ElementwiseTolerance",
    "ErrorLimits",
    "IndexOutput",
    "OutputErrors",
    "describe_difference",
    "index_outputs",
    "is_float",
    "is_tie_within_tolerance",
    "measure_errors",
    "noise_floors",
    "quantized_caches",
    "relative_distance",
    "rounding_of",
]  # fmt: skip

_EPSILON: Mapping[str, float] = MappingProxyType(
    {
        "float16": 2.0**-10, "bfloat16": 2.0**-7, "float8_e4m3fn": 2.0**-3,
        "float8_e4m3fnuz": 2.0**-3, "float8_e5m2": 2.0**-2, "float8_e5m2fnuz": 2.0**-2,
    }
)  # fmt: skip
"""Distance between 1 and the next number, by type; wider types resolve more than is compared."""
_SMALLEST = float(np.finfo(np.float32).smallest_normal)


@dataclass(frozen=True)
class OutputErrors:
    """Errors of a floating-point output against a reference, over its finite elements.

    ``max_abs`` is the largest absolute difference, ``relative`` is ``max_abs`` over ``max|y|``
    (infinite if NaN or infinities are at other positions, or if dims differ), ``cosine`` the
    cosine similarity of both as vectors.  Subnormal differences count as zero, because processors
    and ONNX Runtime's kernels may flush them.
    """

    max_abs: float
    relative: float
    cosine: float


def measure_errors(found: Array, wanted: Array) -> OutputErrors:
    """Return the errors of ``found`` against ``wanted``."""
    if found.shape != wanted.shape:
        return OutputErrors(math.inf, math.inf, 0.0)
    if found.dtype == wanted.dtype and found.tobytes() == wanted.tobytes():
        return OutputErrors(0.0, 0.0, 1.0)
    x, y = _wide(found), _wide(wanted)
    finite = np.isfinite(x) & np.isfinite(y)
    if not finite.all():
        if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
            return OutputErrors(math.inf, math.inf, 0.0)
        x, y = x[finite], y[finite]
    if not x.size:
        return OutputErrors(0.0, 0.0, 1.0)
    difference, scale = float(np.max(np.abs(x - y))), float(np.max(np.abs(y)))
    share = difference / (scale or 1.0) if difference >= _SMALLEST else 0.0
    return OutputErrors(difference, share, _cosine(x, y))


@dataclass(frozen=True)
class ElementwiseTolerance:
    """A caller's tolerance for each element: ``|x − y| ≤ atol + rtol·|y|``."""

    rtol: float = 0.0
    atol: float = 0.0

    def __str__(self) -> str:
        return f"{self.rtol:.1e} of each element plus {self.atol:.1e} is allowed"

    def accepts(self, found: Array, wanted: Array) -> bool:
        """Return True if every element is within the tolerance; NaN equals NaN."""
        x, y = _wide(found), _wide(wanted)
        return x.shape == y.shape and bool(
            np.allclose(x, y, rtol=self.rtol, atol=self.atol, equal_nan=True)
        )


@dataclass(frozen=True)
class ErrorLimits:
    """Errors allowed for outputs.

    ``tolerance`` is the error allowed, as a share of ``max|y|``; ``tolerance_given`` says that
    the caller gave it.  ``by_output`` holds the caller's tolerances for single outputs.  For an
    output without a tolerance from the caller, an error of twice ONNX Runtime's own is allowed
    too.
    ``elementwise`` replaces all of these for floating-point outputs.
    """

    tolerance: float = TOLERANCE.exact
    tolerance_given: bool = False
    by_output: Mapping[str, float] = field(default_factory=dict)
    elementwise: ElementwiseTolerance | None = None

    def of(self, output: str) -> float:
        """Return the tolerance of an output."""
        return self.by_output.get(output, self.tolerance)

    def allowed(self, output: str, floor: float) -> float:
        """Return the error allowed for an output if ONNX Runtime's own error is ``floor``."""
        given = self.tolerance_given or output in self.by_output or not math.isfinite(floor)
        return self.of(output) if given else max(self.of(output), TOLERANCE.floor_factor * floor)


def relative_distance(found: Array, wanted: Array, numbers: bool = False) -> float:
    """Return ``measure_errors(…).relative`` for floats; 0 or infinity for all other types.

    With ``numbers``, integers stand for numbers and are compared as floats are.
    """
    if numbers or is_float(wanted):
        return measure_errors(found, wanted).relative
    return 0.0 if np.array_equal(found, wanted) else math.inf


def describe_difference(found: Array, wanted: Array) -> str:
    """Return, as a clause, why :func:`relative_distance` of two outputs is infinite."""
    if found.shape != wanted.shape:
        return f"it is {found.dtype}{found.shape}, not {wanted.dtype}{wanted.shape}"
    if is_float(wanted):
        return "NaN or infinities are at other positions"
    return f"{int(np.sum(found != wanted))} of {found.size} elements differ"


def noise_floors(
    off: Mapping[str, Mapping[str, Array]],
    on: Mapping[str, Mapping[str, Array]],
    noise: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
    sigmoids: Set[str] = frozenset(),
    quantized: Set[str] = frozenset(),
) -> dict[str, dict[str, float]]:
    """Return the noise floor of each output under each feed: differences below it are noise.

    The floor is the largest of these:

    * the distance of ``on`` from ``off``, the answers with ONNX Runtime's optimizations on and
      off;
    * the distance under another feed, but at most ``TOLERANCE.lent_floor``, so that one extreme
      feed does not excuse errors under the others;
    * ``noise``;
    * half a unit in the last place, for types of 8 and 16 bits and for outputs ``quantized``,
      whose integers stand for numbers;
    * the error of a sigmoid, for the outputs ``sigmoids``: it is large relative to ``max|y|`` if
      all results are tiny.
    """
    found = {
        label: {
            name: relative_distance(on[label][name], y, name in quantized)
            for name, y in run.items()
        }
        for label, run in off.items()
    }
    lent: dict[str, float] = {}
    for name, own in (pair for run in found.values() for pair in run.items()):
        if math.isfinite(own):
            lent[name] = max(lent.get(name, 0.0), min(own, TOLERANCE.lent_floor))
    return {
        label: {
            name: max(
                own,
                noise.get(label, {}).get(name, 0.0),
                lent.get(name, 0.0),
                _rounding(off[label][name], name in quantized),
                _sigmoid_error(off[label][name]) if name in sigmoids else 0.0,
            )
            for name, own in run.items()
        }
        for label, run in found.items()
    }


def _rounding(array: Array, quantized: bool) -> float:
    """Return half a unit in the last place of the largest element; 0 for wide types.

    Twice that is allowed: an output may be off by one number of its own type.
    """
    if quantized:
        return 0.5 / max(float(np.max(np.abs(_wide(array)), initial=0.0)), 1.0)
    return _EPSILON.get(array.dtype.name, 0.0) / 2


def _sigmoid_error(array: Array) -> float:
    """Return the error of a sigmoid as a share of its largest result; 0 if that is 0."""
    largest = float(np.max(array, initial=0.0)) if is_float(array) else 0.0
    return TOLERANCE.sigmoid / largest if largest > 0.0 else 0.0


def rounding_of(types: Collection[DType]) -> float:
    """Return the error of numbers of the half types that a model computes in, as a share of them.

    Without such types, it is that of sums in float32.
    """
    steps = {DType.F16: _EPSILON["float16"], DType.BF16: _EPSILON["bfloat16"]}
    return max((steps[t] / 2 for t in types if t in steps), default=TOLERANCE.rounding)


def is_float(array: Array) -> bool:
    """Return True for real and complex floating point, including bf16 and 8-bit floats."""
    return array.dtype.kind in "fc" or array.dtype.name.startswith(("bfloat", "float8"))


def _wide(array: Array) -> Array:
    """Convert to double precision, complex numbers as pairs."""
    if array.dtype.kind == "c":
        return np.ascontiguousarray(array.astype(np.complex128)).view(np.float64)
    return array.astype(np.float64)


def _cosine(x: Array, y: Array) -> float:
    length = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(np.vdot(x, y)) / length if length else float(np.array_equal(x, y))


# ---- indices chosen by score -----------------------------------------------------------


@dataclass(frozen=True)
class IndexOutput:
    """An output that holds indices along ``axis`` of the value ``scores`` (ArgMax, TopK)."""

    scores: str
    axis: int


NO_INDEX_OUTPUTS: Mapping[str, IndexOutput] = MappingProxyType({})


def index_outputs(graph: TileGraph) -> Mapping[str, IndexOutput]:
    """Return the outputs that are indices chosen by score (ArgMax, ArgMin, TopK).

    Cast, Identity or Squeeze may follow the choice.
    """
    found: dict[str, IndexOutput] = {}
    for output in graph.outputs:
        region, value = graph.producer(output), output
        while region is not None and region.op in ("Cast", "Identity", "Squeeze"):
            value = region.operands[0]
            region = graph.producer(value)
        if region is None or region.op not in ("ArgMax", "ArgMin", "TopK"):
            continue
        if region.op == "TopK" and value == region.results[0]:
            continue
        axis = region.node.attrs.get("axis", -1 if region.op == "TopK" else 0)
        if isinstance(axis, int):
            found[output] = IndexOutput(region.operands[0], axis)
    return found


def quantized_caches(graph: TileGraph) -> frozenset[str]:
    """Return the outputs that hold attention's caches in integers, which stand for numbers.

    A number between two integers may be rounded to either of them.
    """
    found = set[str]()
    for output in graph.outputs:
        region = graph.producer(output)
        if region is not None and region.op == "com.microsoft::GroupQueryAttention":
            found |= {output} & {*region.results[1:3]}
    return frozenset(v for v in found if graph.spec(v).dtype in (DType.I8, DType.U8))


def is_tie_within_tolerance(
    found: Array, wanted: Array, scores: Array, axis: int, tolerance: float
) -> bool:
    """Return True if all differing indices were chosen between scores within ``tolerance``.

    That is, the scores at both indices differ by at most ``tolerance`` of ``max|scores|``.
    """
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    have, want = (_as_indices(a, scores, axis) for a in (found, wanted))
    length = scores.shape[axis]
    if have is None or want is None or np.any((have < 0) | (have >= length)):
        return False
    values = _wide(scores)
    gap = np.abs(np.take_along_axis(values, have, axis) - np.take_along_axis(values, want, axis))
    return bool(np.max(gap, initial=0.0) <= tolerance * np.max(np.abs(values), initial=0.0))


def _as_indices(array: Array, scores: Array, axis: int) -> Array | None:
    """Return indices with the rank of the scores; None if they do not fit."""
    if array.ndim == scores.ndim - 1:
        array = np.expand_dims(array, axis)
    shape, like = list(array.shape), list(scores.shape)
    if len(shape) != len(like) or array.dtype.kind not in "iuf":
        return None
    shape.pop(axis)
    like.pop(axis)
    return array.astype(np.int64) if shape == like else None
