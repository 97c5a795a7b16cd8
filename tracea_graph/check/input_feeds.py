"""Inputs for verification and timing: synthesised from the graph's uses, or read from a file.

Floats are N(0, 1), images uniform in [0, 1).  Integers obey the constraints of their uses.  Masks
keep everything, or in a padded binding all except the last third of every other batch entry.
Position ids ascend.  A graph, binding and seed always give identical arrays.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any
from zipfile import is_zipfile

import numpy as np

from tracea_graph.check.input_constraints import InputConstraint, input_constraint
from tracea_graph.check.operand_constraints import Dims
from tracea_graph.check.symbol_bindings import Binding, choose_bindings, inputs_to_feed
from tracea_graph.check.worker_process import Array
from tracea_graph.errors import UsageError
from tracea_graph.ir import DType, TensorSpec, evaluate, symbols_of
from tracea_graph.temporary_files import open_regular_file
from tracea_graph.ttg.region_graph import TileGraph

__all__ = [
    "Binding",
    "Feeds",
    "choose_bindings",
    "read_input_sets",
    "synthesize_containers",
    "synthesize_inputs",
]

Feeds = Mapping[str, Mapping[str, Array]]
"""Named input sets: binding label → input name → array."""

_NUMPY: Mapping[DType, str] = {
    DType.F32: "float32", DType.F64: "float64", DType.F16: "float16", DType.BF16: "bfloat16",
    DType.U8: "uint8", DType.I8: "int8", DType.U16: "uint16", DType.I16: "int16",
    DType.U32: "uint32", DType.I32: "int32", DType.U64: "uint64", DType.I64: "int64",
    DType.BOOL: "bool", DType.C64: "complex64", DType.C128: "complex128",
    DType.F8E4M3FN: "float8_e4m3fn", DType.F8E4M3FNUZ: "float8_e4m3fnuz",
    DType.F8E5M2: "float8_e5m2", DType.F8E5M2FNUZ: "float8_e5m2fnuz", DType.STR: "object",
}  # fmt: skip
_FLOATS = frozenset({DType.F32, DType.F64, DType.F16, DType.BF16, DType.C64, DType.C128})
_WORDS = ("alpha", "beta", "gamma", "")
_MASKED_SCORE = -1e4
_LONGEST_REASON = 300
"""Maximum length of a library's message about a damaged file."""
_ELEMENTS = 9
"""Number of tensors in a sequence; larger than any index that nothing else constrains."""


def synthesize_inputs(
    graph: TileGraph, binding: Binding, seed: int = 0, inputs: Sequence[str] | None = None
) -> dict[str, Array]:
    """Return an array for every input without a default, with dims from the binding.

    ``inputs`` names the inputs to fill, for a model whose overridable initializers are inputs too.
    Inputs that are not tensors of a known type are left out: see :func:`synthesize_containers`.
    """
    dims = dims_for_binding(graph, binding)
    wanted = [v for v in inputs_to_feed(graph, inputs) if graph.spec(v).dtype in _NUMPY]
    return {name: _array(graph, name, binding, dims, seed) for name in wanted}


def synthesize_containers(
    containers: Mapping[str, tuple[bool, TensorSpec]], binding: Binding, seed: int = 0
) -> dict[str, Array]:
    """Return tensors for optional inputs, by name, and for sequence inputs, as ``name[i]``.

    Symbols without a size in the binding count as 3.
    """
    found: dict[str, Array] = {}
    for name, (several, spec) in containers.items():
        if spec.dtype not in _NUMPY:
            continue
        shape = tuple(evaluate(d, {**dict.fromkeys(symbols_of(d), 3), **binding.symbols})
                      for d in spec.shape or ())  # fmt: skip
        for i in range(_ELEMENTS if several else 1):
            rng = np.random.default_rng([seed, i, zlib.crc32(name.encode())])
            key = f"{name}[{i}]" if several else name
            found[key] = _free(spec.dtype or DType.F32, shape, rng)
    return found


def _free(dtype: DType, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return an unconstrained array."""
    if dtype is DType.STR:
        return rng.choice(np.array(_WORDS, dtype=object), shape)
    if dtype in _FLOATS:
        return _cast(np.asarray(rng.standard_normal(shape)), dtype)
    return _cast(rng.integers(0, 2 if dtype is DType.BOOL else 8, shape), dtype)


def dims_for_binding(graph: TileGraph, binding: Binding) -> Dims:
    """Return a function that returns the dims of a value under a binding; None where unknown."""

    def dims(value: str) -> tuple[int | None, ...] | None:
        shape = graph.spec(value).shape if value else None
        if shape is None:
            return None
        known = (all(s in binding.symbols for s in symbols_of(d)) for d in shape)
        return tuple(
            evaluate(d, binding.symbols) if ok else None
            for d, ok in zip(shape, known, strict=True)
        )

    return dims


# ---- one input -------------------------------------------------------------------------


def _array(graph: TileGraph, name: str, binding: Binding, dims: Dims, seed: int) -> Array:
    spec = graph.spec(name)
    shape = tuple(1 if d is None else d for d in dims(name) or ())
    dtype = spec.dtype or DType.F32
    if name in binding.symbols and int(np.prod(shape)) == 1:
        return np.full(shape, binding.symbols[name]).astype(_NUMPY[dtype])
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if dtype is DType.STR:
        return rng.choice(np.array(_WORDS, dtype=object), shape)
    found = input_constraint(graph, name, dims)
    values = _values(found, dtype, name.lower(), shape, binding, rng)
    return _cast(values, dtype)


def _values(
    constraint: InputConstraint,
    dtype: DType,
    name: str,
    shape: tuple[int, ...],
    binding: Binding,
    rng: np.random.Generator,
) -> Array:
    """Return the values of an input, before conversion to its dtype."""
    if constraint.exact is not None:
        return np.asarray(constraint.exact, dtype=np.float64).reshape(shape)
    masks = "mask" in name or (constraint.kind == "mask" and (constraint.high or 2) <= 2)
    if dtype in _FLOATS:
        return _floats(constraint, masks and "mask" in name, shape, binding, rng)
    if masks:
        return _mask(shape, constraint.attend, binding.padded)
    if dtype is DType.BOOL:
        return rng.random(shape) < 0.5
    low, high = _limits(constraint, dtype, shape)
    if "pos" in name and shape:
        ascending = _past(binding) + np.arange(shape[-1])
        return np.broadcast_to(ascending % max(high - low, 1) + low, shape)
    return rng.integers(low, max(high, low + 1), shape)


def _past(binding: Binding) -> int:
    """Number of tokens in the KV cache, at which positions start."""
    sizes = (n for s, n in binding.symbols.items() if "past" in s.lower() and "+" not in s)
    return max(sizes, default=0)


def _floats(
    constraint: InputConstraint,
    mask: bool,
    shape: tuple[int, ...],
    binding: Binding,
    rng: np.random.Generator,
) -> Array:
    if mask and constraint.kind == "additive":
        return (1.0 - _mask(shape, 1, binding.padded)) * _MASKED_SCORE
    if mask:
        return _mask(shape, constraint.attend, binding.padded)
    if constraint.kind == "positive":
        return np.abs(rng.standard_normal(shape)) + 0.1
    return rng.random(shape) if _is_image(shape) else rng.standard_normal(shape)


def _mask(shape: tuple[int, ...], attend: int, padded: bool) -> Array:
    """Return ``attend`` everywhere; if padded, except in the last third of even batch entries."""
    mask = np.full(shape, attend, dtype=np.int64)
    if padded and shape and shape[-1] >= 3:
        rows = mask[::2] if len(shape) > 1 else mask
        rows[..., shape[-1] - shape[-1] // 3 :] = 1 - attend
    return mask


def _limits(constraint: InputConstraint, dtype: DType, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return ``[low, high)`` for integers; unconstrained bytes use their full range."""
    if constraint.low is None and constraint.high is None and dtype in (DType.U8, DType.I8):
        return (0, 256) if dtype is DType.U8 else (-128, 128)
    single = int(np.prod(shape)) == 1
    low = constraint.low if constraint.low is not None else int(single)
    return low, constraint.high if constraint.high is not None else low + 8


def _is_image(shape: tuple[int, ...]) -> bool:
    """Return True for four dims with a channel count second or last and the others large."""
    if len(shape) != 4:
        return False
    for channel, sides in ((1, (2, 3)), (3, (1, 2))):
        if shape[channel] in (1, 3, 4) and all(shape[s] >= 8 for s in sides):
            return True
    return False


def _cast(values: Array, dtype: DType) -> Array:
    constraint = numpy_dtype(dtype)
    if constraint.kind == "u":
        values = np.maximum(values, 0)
    if constraint.itemsize < 4 and values.dtype == np.float64:
        values = values.astype(np.float32)
    return values.astype(constraint, order="C")


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """Return the NumPy type of an element type; bf16 and 8-bit floats come from ``ml_dtypes``."""
    name = _NUMPY[dtype]
    if name.startswith(("bfloat", "float8")):
        import ml_dtypes

        name = getattr(ml_dtypes, name)
    return np.dtype(name)


# ---- real data -------------------------------------------------------------------------


def read_input_sets(
    path: Path, graph: TileGraph, inputs: Sequence[str] | None = None
) -> list[dict[str, Array]]:
    """Read input sets from an ``.npz`` file with one array per input, named after it.

    If all arrays have the ranks of their inputs, they form one set; if all have an extra leading
    dim of size n, they form n sets.  ``inputs`` are the required inputs.  Raises UsageError if the
    file cannot be read or does not fit the model.
    """
    try:
        arrays = _arrays_of(path)
    except Exception as error:  # NumPy and zipfile raise many exception types for damaged files
        why = getattr(error, "strerror", None) or shorten(str(error), _LONGEST_REASON)
        raise UsageError(f"cannot read input data from {path}: {why}") from error
    names = inputs_to_feed(graph, inputs)
    missing = [v for v in names if v not in arrays]
    surplus = [v for v in arrays if v not in graph.inputs]
    if missing or surplus:
        raise UsageError(
            f"{path} must hold one array per input ({', '.join(names)}); "
            f"missing: {', '.join(missing) or 'none'}, unknown: {', '.join(surplus) or 'none'}"
        )
    sets = _split(path, arrays, graph)
    return [{n: _fitting(path, n, a, graph) for n, a in one.items()} for one in sets]


def _arrays_of(path: Path) -> dict[str, Array]:
    with open_regular_file(path) as file:
        if not is_zipfile(file):
            raise ValueError("it is not an .npz file; numpy.savez writes one")
        file.seek(0)
        with np.load(file, allow_pickle=False) as data:
            arrays = {name: data[name] for name in data.files}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{name!r} is not an array")
    return arrays


def _split(path: Path, arrays: dict[str, Array], graph: TileGraph) -> list[dict[str, Array]]:
    """Return one set per entry of the extra leading dim, if all arrays have one."""
    ranks = {name: graph.spec(name).rank for name in arrays}
    extra = {arrays[name].ndim - rank for name, rank in ranks.items() if rank is not None}
    if extra != {1}:
        return [arrays]
    counts = {len(a) for a in arrays.values()}
    if len(counts) != 1:
        raise UsageError(
            f"the arrays in {path} hold different numbers of samples: {sorted(counts)}"
        )
    return [{n: a[i] for n, a in arrays.items()} for i in range(counts.pop())]


def _fitting(path: Path, name: str, array: Array, graph: TileGraph) -> Array:
    """Convert an array to the input's dtype.  Raises UsageError if its dims do not fit."""
    spec = graph.spec(name)
    shape = spec.shape if spec.shape is not None else array.shape
    fits = len(shape) == array.ndim and all(
        not isinstance(constraint, int) or constraint == have
        for constraint, have in zip(shape, array.shape, strict=True)
    )
    if not fits:
        raise UsageError(f"{name!r} in {path} has dims {array.shape}; the model takes {spec}")
    known = spec.dtype is not None and spec.dtype in _NUMPY
    constraint = numpy_dtype(spec.dtype) if spec.dtype and known else array.dtype
    same_bits = array.dtype.kind == "V" and array.dtype.itemsize == constraint.itemsize
    if not same_bits and not np.can_cast(array.dtype, constraint, "same_kind"):
        raise UsageError(f"{name!r} in {path} is {array.dtype}; the model takes {spec}")
    return array.view(constraint) if same_bits else array.astype(constraint, order="C")
