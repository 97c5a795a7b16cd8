"""Derived weights: values computed from constants by a node that stays in the graph.

    Transpose(weight), Reshape(weight), Slice(weight) …, ConstantOfShape([…])
    DequantizeLinear(weight), if no kernel multiplies its integers
        ->   a lazily computed weight

A pass that consumes such a weight leaves the node without readers, and pruning removes it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, TensorSpec, Weight
from tracea_graph.onnx_io.graph_editor import EditorNode, GraphEditor
from tracea_graph.onnx_io.tensor_data import numpy_dtype, tensor_attribute_array
from tracea_graph.onnx_io.value_facts import attribute

__all__ = ["derive_weights"]

_LARGEST = 1 << 31
"""Maximum bytes of a filled constant; a larger one indicates a corrupt size."""

RESHAPING = frozenset({"Reshape", "Unsqueeze", "Squeeze", "Flatten", "Identity"})

_FAR = 1 << 30
"""Slice bounds beyond this mean the end of the axis."""

NUMERIC = frozenset({
    DType.F16, DType.BF16, DType.F32, DType.F64, DType.I8, DType.I16, DType.I32, DType.I64,
    DType.U8, DType.U16, DType.U32, DType.U64, DType.BOOL,
})  # fmt: skip


WIDE = frozenset({DType.I16, DType.U16})
"""Quantized numbers that kernels read as float32 alone."""
_MOVING = RESHAPING | {"Transpose", "Pad", "Slice", "Concat", "MaxPool", "Resize"}
"""Operators behind which an image is still of quantized numbers."""


def derive_weights(editor: GraphEditor) -> None:
    """Add to ``editor.weights`` every weight that a node computes from constants."""
    readers = Counter(v for call in editor.calls() for v in call.proto.input)
    for call in editor.calls():
        weight = _derived(call, editor, readers)
        if weight is not None:
            editor.weights[weight.name] = weight


def _derived(call: EditorNode, editor: GraphEditor, readers: Counter[str]) -> Weight | None:
    inputs, outputs = call.proto.input, call.proto.output
    spec = editor.facts.specs.get(outputs[0]) if outputs else None
    if spec is None or spec.dtype not in NUMERIC or not _static(spec):
        return None
    if not all(name in editor.weights for name in inputs if name):
        return None
    assert spec.dtype is not None and spec.shape is not None
    shape = tuple(d for d in spec.shape if isinstance(d, int))
    if call.op == "ConstantOfShape":
        fits = math.prod(shape) * spec.dtype.size <= _LARGEST
        return _filled(call, spec.dtype, shape) if fits else None
    base = editor.weights.get(inputs[0]) if inputs else None
    if base is None or base.dtype not in NUMERIC:
        return None
    made = partial(Weight, outputs[0], spec.dtype, shape, filled=base.filled)
    if call.op in RESHAPING:
        return made(lambda: base.array().reshape(shape))
    if call.op == "Transpose":
        perm = attribute(call.proto, "perm")
        return made(lambda: np.transpose(base.array(), perm))
    if call.op == "Cast":
        kind = numpy_dtype(spec.dtype)
        return made(lambda: _cast(base.array(), kind))
    if call.op == "DequantizeLinear" and spec.dtype is DType.F32 and _read_as_floats(call, editor):
        given = [editor.weights[name] for name in inputs[1:] if name]
        axis, block = (attribute(call.proto, n, d) for n, d in (("axis", 1), ("block_size", 0)))
        return made(lambda: _dequantized(base, given, axis, block), filled=False)
    # with other readers, its slices could outgrow it
    if call.op == "Slice" and readers[base.name] == 1:
        parts = _slices(call, editor, len(base.shape))
        return made(lambda: base.array()[parts])
    return None


def _slices(call: EditorNode, editor: GraphEditor, rank: int) -> tuple[slice, ...]:
    """NumPy index of a Slice with constant bounds."""
    names = ("starts", "ends", "axes", "steps")
    given = {n: attribute(call.proto, n) for n in names}
    for name, value in zip(names, call.proto.input[1:], strict=False):
        given[name] = editor.weights[value].array().tolist() if value else None
    starts, ends = given["starts"], given["ends"]
    axes = given["axes"] if given["axes"] is not None else range(len(starts))
    steps = given["steps"] if given["steps"] is not None else [1] * len(starts)
    parts = [slice(None)] * rank
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        backwards_to_the_end = step < 0 and end < -_FAR
        parts[axis] = slice(start, None if backwards_to_the_end else end, step)
    return tuple(parts)


def _filled(call: EditorNode, dtype: DType, shape: tuple[int, ...]) -> Weight | None:
    name, fill = call.proto.output[0], attribute(call.proto, "value")
    element = np.zeros(1, np.float32) if fill is None else tensor_attribute_array(fill, name)
    if element.size != 1:
        return None
    return Weight(
        name, dtype, shape, lambda: np.full(shape, element.item(), element.dtype), filled=True
    )


def _cast(array: npt.NDArray[Any], kind: np.dtype[Any]) -> npt.NDArray[Any]:
    with np.errstate(all="ignore"):
        return array.astype(kind)


def _read_as_floats(call: EditorNode, editor: GraphEditor) -> bool:
    """Return whether kernels read dequantized numbers as float32: those of 16 bits, and filters of
    images that are quantized to 16 bits."""
    if editor.facts.dtype(call.proto.input[0]) in WIDE:
        return True
    readers = editor.readers(call)
    return bool(readers) and all(
        reader.proto.op_type in ("Conv", "ConvTranspose")
        and _quantized_wide(reader.proto.input[0], editor)
        for reader in readers
    )


def _quantized_wide(value: str, editor: GraphEditor) -> bool:
    """Return whether a value is, maybe after being moved, dequantized from 16 bits."""
    tensor = editor.tensors.get(value)
    while tensor is not None and tensor.inputs:
        (node,) = tensor.inputs
        if node.op == "DequantizeLinear":
            return editor.facts.dtype(node.inputs[0].name) in WIDE
        if node.op not in _MOVING:
            return False
        tensor = node.inputs[0]
    return False


def _dequantized(
    numbers: Weight, given: Sequence[Weight], axis: int, block: int
) -> npt.NDArray[np.float32]:
    """Return (numbers − zero) · scale in float32; scales are for all, an axis or its blocks."""
    shape = numbers.shape

    def spread(weight: Weight) -> npt.NDArray[Any]:
        array = np.asarray(weight.array())
        if array.size == 1:
            return array.reshape(())
        if block:
            return np.repeat(array, block, axis)[
                tuple(slice(d) for d in shape)
            ]  # the last block may be cut off
        return array.reshape([-1 if i == axis % len(shape) else 1 for i in range(len(shape))])

    scale, *zero = [spread(weight) for weight in given]
    whole = np.asarray(numbers.array()).astype(np.int32)
    offset = zero[0].astype(np.int32) if zero else np.int32(0)
    made: npt.NDArray[np.float32] = (whole - offset).astype(np.float32) * scale.astype(np.float32)
    return made


def _static(spec: TensorSpec) -> bool:
    extents: Iterable[object] | None = spec.shape
    return extents is not None and all(isinstance(d, int) for d in extents)
