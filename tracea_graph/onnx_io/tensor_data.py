"""Tensor data: lazy handles on bytes in files, and conversion to and from ONNX's raw bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tracea_graph.errors import GraphError, ModelError
from tracea_graph.ir import DType, Weight

__all__ = [
    "FileSegment",
    "constant_value",
    "dtype_of",
    "from_proto",
    "in_memory_weight",
    "numpy_dtype",
    "raw_chunks",
    "stored_size",
    "tensor_attribute_array",
    "tensor_without_data",
]

Array = npt.NDArray[Any]

CHUNK = 1 << 20
_DATA_FIELDS = (
    "raw_data", "float_data", "double_data", "int32_data", "int64_data", "uint64_data",
)  # fmt: skip


@dataclass(frozen=True)
class FileSegment:
    """Loads a tensor from its raw bytes at ``[offset, offset + length)`` of a file.

    Aligned data is memory-mapped, and occupies memory only when accessed; other data is read.
    Raises ModelError if the file has become unreadable.
    """

    path: Path
    offset: int
    length: int
    dtype: DType
    shape: tuple[int, ...]

    def __call__(self) -> Array:
        if self.dtype.size < 1:
            return numpy_helper.to_array(self._proto())
        kind = numpy_dtype(self.dtype)
        try:
            if self.length and self.offset % kind.itemsize == 0:
                return np.memmap(self.path, kind, "r", self.offset, self.shape)
            count = self.length // kind.itemsize
            return np.fromfile(self.path, kind, count, offset=self.offset).reshape(self.shape)
        except (OSError, ValueError) as error:
            raise ModelError(f"{self.path.name} can no longer be read: {error}") from error

    def chunks(self) -> Iterator[bytes]:
        """Yield the raw bytes, a megabyte at a time."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                left = self.length
                while left:
                    block = file.read(min(left, CHUNK))
                    if not block:
                        raise ModelError(f"{self.path.name} was cut short while it was in use")
                    left -= len(block)
                    yield block
        except OSError as error:
            raise ModelError(f"{self.path.name} can no longer be read: {error}") from error

    def _proto(self) -> TensorProto:
        raw = b"".join(self.chunks())
        return TensorProto(data_type=self.dtype.onnx, dims=self.shape, raw_data=raw)


def from_proto(proto: TensorProto, segment: FileSegment | None, name: str = "") -> Weight:
    """Return the weight of a proto, with its bytes in ``segment`` or in the proto itself.

    Raises ModelError for an unknown type, or for data that does not fill the declared shape.
    """
    label, dtype = name or proto.name, dtype_of(proto)
    shape = tuple(proto.dims)
    weight = Weight(label, dtype, shape, segment or (lambda: numpy_helper.to_array(proto)))
    if any(d < 0 for d in shape):
        raise ModelError(f"initializer {label!r} has the negative size {list(shape)}")
    if math.prod(d or 1 for d in shape) >= 1 << 60:  # beside a 0: NumPy refuses such shapes too
        raise ModelError(f"initializer {label!r} has the impossible size {list(shape)}")
    need = stored_size(weight)
    if segment:
        if segment.length != need:
            raise ModelError(_misfit(label, segment.length, "bytes", shape, need))
    elif proto.HasField("raw_data") and dtype is not DType.STR:
        if len(proto.raw_data) != need:
            raise ModelError(_misfit(label, len(proto.raw_data), "bytes", shape, need))
    else:
        _check_typed(proto, weight)
    return weight


def tensor_attribute_array(proto: TensorProto, name: str) -> Array:
    """Return the array of a tensor attribute; ``name`` identifies it in errors.

    Raises ModelError like :func:`from_proto`.
    """
    return from_proto(proto, None, name).load()


def constant_value(node: NodeProto) -> Array | None:
    """Return the value of a ``Constant`` node; None for strings and sparse tensors.

    Raises ModelError like :func:`from_proto`.
    """
    for attr in node.attribute:
        value = helper.get_attribute_value(attr)
        if attr.name == "value" and value.data_type != TensorProto.STRING:
            return tensor_attribute_array(value, node.output[0])
        if attr.name in ("value_int", "value_ints"):
            return np.array(value, np.int64)
        if attr.name in ("value_float", "value_floats"):
            return np.array(value, np.float32)
    return None


def in_memory_weight(name: str, array: Array) -> Weight:
    """Return a weight held in memory; raises GraphError for a type that ONNX lacks."""
    dtype = DType.from_onnx(helper.np_dtype_to_tensor_dtype(array.dtype))
    if dtype is None:
        raise GraphError(f"constant {name!r} has the type {array.dtype}, which ONNX lacks")
    return Weight(name, dtype, array.shape, lambda: array)


def dtype_of(proto: TensorProto) -> DType:
    """Return the element type of a tensor; raises ModelError for an unknown one."""
    dtype = DType.from_onnx(proto.data_type)
    if dtype is None:
        raise ModelError(f"initializer {proto.name!r} has the unknown type {proto.data_type}")
    return dtype


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """Return the NumPy type for single elements of a dtype (from ``ml_dtypes`` if needed)."""
    return np.dtype(helper.tensor_dtype_to_np_dtype(dtype.onnx))


def tensor_without_data(proto: TensorProto) -> TensorProto:
    """Return a copy that keeps name, type, shape, documentation and metadata, but no data."""
    bare = TensorProto()
    bare.CopyFrom(proto)
    for name in (*_DATA_FIELDS, "external_data", "data_location"):
        bare.ClearField(name)
    return bare


def stored_size(weight: Weight) -> int:
    """Return the bytes of a weight in ONNX: sub-byte elements are packed, the last byte padded."""
    return math.ceil(weight.count * weight.dtype.size)


def raw_chunks(weight: Weight) -> Iterator[bytes | memoryview]:
    """Yield a weight as ``raw_data``, streamed if it comes from a file.

    Raises GraphError if the array does not have the declared size.
    """
    if isinstance(weight.load, FileSegment):
        yield from weight.load.chunks()
        return
    array = np.ascontiguousarray(weight.array())
    if weight.dtype.size < 1:
        raw: bytes | memoryview = numpy_helper.from_array(array).raw_data
    else:
        raw = array.reshape(-1).view(np.uint8).data
    if len(raw) != stored_size(weight):
        raise GraphError(f"weight {weight.name!r} has {len(raw)} bytes, not its declared size")
    yield raw


def _check_typed(proto: TensorProto, weight: Weight) -> None:
    """Raise ModelError if typed (not raw) data does not fill the shape."""
    try:
        found = np.asarray(weight.array()).size
    except (ValueError, TypeError):
        found = max(len(getattr(proto, name)) for name in (*_DATA_FIELDS[1:], "string_data"))
        if found == weight.count:
            raise ModelError(f"initializer {weight.name!r} holds data of a wrong type") from None
    if found != weight.count:
        shape = weight.shape
        raise ModelError(_misfit(weight.name, found, "values", shape, weight.count))


def _misfit(name: str, found: int, unit: str, shape: tuple[int, ...], need: int) -> str:
    return f"initializer {name!r} holds {found} {unit}, but its shape {list(shape)} needs {need}"
