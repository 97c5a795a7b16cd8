"""Whether a model has an answer to be equal to: one that rounding cannot move.

Every float value is moved by a random share of itself, up to ``JITTER``.  A model whose outputs
then move by more than ``MOVED`` of ``max|y|`` (the spread of equal numbers, a jump that a rounded
value may cross) would be called wrong by any other order of the same arithmetic.  So would one
whose answer in double precision is that far away, with every sum moved within its rounding bound
(:mod:`.conditioning`) or not: what rounds inside an operator moves no value before it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from tests.fuzz.conditioning import MAX_RANDOM_OPSET, reordered
from tests.fuzz.doubling import doubled
from tests.graphs import session

__all__ = ["Array", "brittle", "jittered_twice", "moved", "reordered_twice", "steady"]

Array = npt.NDArray[Any]
JITTER, MOVED = 1e-6, 2e-5
"""Rounding to float32 moves a value by up to 6e-8; what is allowed are 1e-4."""
_HALF = 2.0**-10
"""What rounding to float16 moves a value by, if it stood on the edge."""
_LOW, _HIGH, _ZERO = "fuzz__low", "fuzz__high", "fuzz__zero"
_MOST = 1e5


def steady(model: onnx.ModelProto, feeds: Mapping[str, Mapping[str, Array]]) -> bool:
    """True if some feed is taken, and under each such feed every output stands, some finite.

    False for a model that ONNX Runtime's own optimizations break: it does not run as it is.
    """
    if not _optimizes(model):
        return False
    plain, moved = session(model), [session(m) for m in jittered_twice(model)]
    wide = [session(m) for m in (doubled(model), *reordered_twice(model))]
    found = {_stands(plain, moved, wide, feed) for feed in feeds.values()}
    return True in found and False not in found


def _optimizes(model: onnx.ModelProto) -> bool:
    try:
        session(model, optimized=True)
    except Fail:
        return False
    return True


def moved(feed: Mapping[str, Array], seed: int = 1) -> dict[str, Array]:
    """Every float32 that is no mask's multiplied by a random number within ``1 ± JITTER``."""
    rng = np.random.default_rng(seed)
    found = dict(feed)
    for name, array in feed.items():
        if name.startswith("x") and array.dtype == np.float32:
            by = rng.uniform(1 - JITTER, 1 + JITTER, array.shape)
            with np.errstate(over="ignore"):
                found[name] = (array * by).astype(np.float32)
    return found


def jittered_twice(model: onnx.ModelProto) -> list[onnx.ModelProto]:
    """Two of them; none for operators newer than ONNX Runtime's RandomUniformLike."""
    return [_jittered(model, seed) for seed in (1, 2) if _randomizable(model)]


def reordered_twice(model: onnx.ModelProto) -> list[onnx.ModelProto]:
    """One whose sums overflow if some order does, one whose sums never do; or, as above, none."""
    return [reordered(model, i, overflow=i == 1) for i in (1, 2) if _randomizable(model)]


def _randomizable(model: onnx.ModelProto) -> bool:
    return all(node.op_type != "Attention" for node in model.graph.node)


def _jittered(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The model with a sum behind every float value: with a random share of itself.

    The share of a mask's −1e9 is that of :data:`_MOST`, lost in rounding, lest it unmask a key.
    """
    count = itertools.count(seed * 1000)
    opset = next(o.version for o in model.opset_import if not o.domain)

    def behind(raw: str, name: str) -> list[onnx.NodeProto]:
        by, most, share = (f"{name}__{what}" for what in ("by", "most", "share"))
        ends = {"min": -_MOST, "max": _MOST} if opset < 11 else {}
        return [
            helper.make_node(
                "RandomUniformLike", [raw], [by],
                low=-JITTER, high=JITTER, seed=float(next(count)), dtype=1,
            ),
            helper.make_node("Clip", [raw] if ends else [raw, _LOW, _HIGH], [most], **ends),
            helper.make_node("Mul", [most, by], [share]),
            helper.make_node("Add", [raw, share], [name]),
        ]  # fmt: skip

    made = _amended(model, behind)
    for end, number in ((_LOW, -_MOST), (_HIGH, _MOST)):
        made.graph.initializer.append(numpy_helper.from_array(np.float32(number), end))
    for domain in made.opset_import:
        domain.version = min(domain.version, MAX_RANDOM_OPSET)
    return made


def brittle(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with NaN for every value that becomes infinite.

    A sum of numbers whose products overflow may be an infinity or NaN, as the order wants it.
    """

    def behind(raw: str, name: str) -> list[onnx.NodeProto]:
        lost = f"{name}__lost"
        nothing = helper.make_node("Mul", [raw, _ZERO], [lost])
        return [nothing, helper.make_node("Add", [raw, lost], [name])]

    made = _amended(model, behind)
    made.graph.initializer.append(numpy_helper.from_array(np.float32(0), _ZERO))
    return made


def _amended(
    model: onnx.ModelProto, behind: Callable[[str, str], list[onnx.NodeProto]]
) -> onnx.ModelProto:
    """The model with nodes behind every float value, from its old name to its own."""
    typed = onnx.shape_inference.infer_shapes(model)
    floats = {
        v.name
        for v in (*typed.graph.value_info, *typed.graph.output)
        if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    }
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:]
    for node in model.graph.node:
        node = _copy(made, node)
        for i, name in enumerate(node.output):
            if name not in floats or node.op_type == "Constant":
                continue
            node.output[i] = f"{name}__raw"
            made.graph.node.extend(behind(node.output[i], name))
    return made


def _copy(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.NodeProto:
    found = model.graph.node.add()
    found.CopyFrom(node)
    return found


def _stands(
    plain: onnxruntime.InferenceSession,
    moved: list[onnxruntime.InferenceSession],
    wide: list[onnxruntime.InferenceSession],
    feed: Mapping[str, Array],
) -> bool | None:
    """None if these are sizes that the model does not take."""
    try:
        wanted = plain.run(None, dict(feed))
    except Exception:
        return None
    doubles = {n: a.astype("float64") if a.dtype == "float32" else a for n, a in feed.items()}
    answers = [session.run(None, dict(feed)) for session in moved]
    answers += [session.run(None, doubles) for session in wide]
    told = any(y.dtype.kind != "f" or np.isfinite(y).any() for y in wanted if y.size)
    return (told or not any(y.size for y in wanted)) and all(
        _near(x, y) for answer in answers for x, y in zip(answer, wanted, strict=True)
    )


def _near(x: Array, y: Array) -> bool:
    if y.dtype.kind != "f":
        return bool(np.array_equal(x, y))
    finite = np.isfinite(y)
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return False
    scale = float(np.abs(y[finite]).max(initial=0.0))
    allowed = MOVED if y.itemsize > 2 else _HALF
    return float(np.abs(x[finite] - y[finite]).max(initial=0.0)) <= allowed * scale
