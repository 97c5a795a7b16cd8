"""Inputs that a drawn model is fed beside those it is verified with: kinds of their own.

plain     sizes that verification does not use
symbols   the same, where one symbol is declared on axes of different sizes
empty     0 for one symbol after the other, and for all
masks     rows all of whose keys are hidden
values    NaN, infinities, signed zeros, subnormal numbers and 1e30 among the numbers

Of models whose symbols are declared so, every feed is of kind ``symbols``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx

from tests.fuzz.draft import traits, true_dims
from tests.fuzz.masking import HIDDEN
from tests.fuzz.steadiness import Array
from tracea_graph.check.input_feeds import Binding, synthesize_inputs
from tracea_graph.onnx_io import load

__all__ = ["KINDS", "Feed", "feeds"]

KINDS = ("plain", "symbols", "empty", "masks", "values")
SIZES = {"batch": 2, "seq": 9, "rows": 11, "columns": 6}
"""Of symbols, when a result is held against its original: none that verification uses."""
_VALUES: Mapping[str, tuple[float, ...]] = {
    "NaN": (np.nan,),
    "infinities": (np.inf, -np.inf),
    "zeros": (0.0, -0.0, 1e-40, -1e-42),
    "1e30": (1e30, -1e30),
}
_WHOLE = frozenset(("Attention", "MultiHeadAttention"))
_POOLS = frozenset(("AveragePool", "MaxPool"))
_MOST = 3
"""Numbers of an input that are replaced: rows without any must not notice."""


@dataclass(frozen=True)
class Feed:
    """Arrays for all inputs; ``label`` says what is special about them."""

    kind: str
    label: str
    arrays: Mapping[str, Array]


def feeds(model: onnx.ModelProto) -> Iterator[Feed]:
    """All that make sense for a drawn model, those of no elements last."""
    tangled = "symbols" in traits(model)
    for feed in _feeds(model):
        yield replace(feed, kind="symbols") if tangled else feed


def _feeds(model: onnx.ModelProto) -> Iterator[Feed]:
    plain = _made(model, SIZES)
    yield Feed("plain", "other sizes", plain)
    yield from _hidden(plain)
    operators = {node.op_type for node in model.graph.node}
    whole = not operators.isdisjoint(_WHOLE)
    for feed in _planted(plain):
        absorbed = whole or not traits(model).isdisjoint(("absorbs", "rounds"))
        if feed.label == "1e30" and absorbed:
            continue  # scores as large as what masks add; or only an order says what overflows
        yield feed
    symbols = sorted({d for dims in true_dims(model).values() for d in dims if isinstance(d, str)})
    pools = not operators.isdisjoint(_POOLS)
    for label, names in [(s, [s]) for s in symbols] + [("all", symbols)] * (len(symbols) > 1):
        if pools and label == "all":
            continue  # ONNX Runtime counts a window over no images without pixels
        empty = _made(model, {**SIZES, **dict.fromkeys(names, 0)})
        yield Feed("empty", f"{label} = 0", empty)


def _made(model: onnx.ModelProto, sizes: Mapping[str, int]) -> dict[str, Array]:
    """What fits the uses of the inputs, in the dims they really take."""
    untangled = onnx.ModelProto()
    untangled.CopyFrom(model)
    dims = true_dims(model)
    for value in untangled.graph.input:
        for dim, true in zip(
            value.type.tensor_type.shape.dim, dims.get(value.name, ()), strict=False
        ):
            dim.Clear()
            setattr(dim, "dim_param" if isinstance(true, str) else "dim_value", true)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "untangled.onnx"
        onnx.save(untangled, path)
        found = load(path, guard=True)  # constants that may be fed are not
        return synthesize_inputs(found.graph, Binding("fuzz", sizes), 5, found.inputs)


def _hidden(plain: Mapping[str, Array]) -> Iterator[Feed]:
    """The first row of every mask sees nothing, nor does anything of the first sequence."""
    masks = [n for n in plain if n.startswith(("mask", "keep"))]
    added = any(n.startswith("mask") for n in masks)
    for number in HIDDEN if added else HIDDEN[: bool(masks)]:
        arrays = dict(plain)
        for name in masks:
            keep = np.ones(plain[name].shape, np.bool_)
            keep[..., keep.shape[-1] - keep.shape[-1] // 3 :] = False
            keep[..., :1, :] = False
            if keep.ndim == 4 and len(keep) > 1:
                keep[0] = False
            if name.startswith("keep"):
                arrays[name] = keep.astype(plain[name].dtype)
            else:
                arrays[name] = np.where(keep, np.float32(0), np.float32(number))
        yield Feed("masks", f"rows hidden by {number:.1e}" if added else "rows hidden", arrays)


def _planted(plain: Mapping[str, Array]) -> Iterator[Feed]:
    """A few numbers of every input of floats are those hard to come by."""
    places = [
        n for n, a in plain.items() if n.startswith("x") and a.dtype == np.float32 and a.size
    ]
    for label, numbers in _VALUES.items() if places else ():
        arrays = dict(plain)
        for name in places:
            rng = np.random.default_rng([zlib.crc32(name.encode()), zlib.crc32(label.encode())])
            array = arrays[name] = plain[name].copy()
            count = array.size // 2 if label == "zeros" else min(_MOST, max(1, array.size // 4))
            array.reshape(-1)[rng.choice(array.size, count, replace=False)] = rng.choice(
                numbers, count
            )
        yield Feed("values", label, arrays)
