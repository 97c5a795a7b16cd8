"""ONNX files for measuring: one operator replicated over different weights of one data file.

    y1 = op(x, w0, extra…, y0);  y2 = op(x, w1, extra…, y1);  …

The last operand only keeps the nodes in order, so that two result buffers suffice for all of them,
as in a real model.  The file is written field by field: it has a few kilobytes, and its weights
are offsets in a data file that every candidate shares.  Source: protobuf encoding, field numbers
of onnx.proto3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.onnx_io.protobuf_wire import encode_tag, encode_varint

__all__ = ["ReplicatedModel"]

_PAGE = 4096
_FLOAT, _INTS, _EXTERNAL = DType.F32.onnx, 7, 1
_IR, _OPSET = 8, 17


@dataclass(frozen=True)
class ReplicatedModel:
    """A model of ``count`` nodes of one custom operator; each reads the result of the one before.

    * ``inputs``: inputs of the model: x first, and last y0, which the first node reads as the
      previous result.
    * ``outputs``: results of one node; the first of them is passed to the next node.
    * ``weight``: type and shape of the weights that each node has of its own.
    * ``data``: file that contains the weights of all nodes one after another, page-aligned.
    """

    domain: str
    op: str
    inputs: Mapping[str, TensorSpec]
    outputs: tuple[TensorSpec, ...]
    weight: TensorSpec
    count: int
    data: str

    @property
    def stride(self) -> int:
        """Bytes from one node's weights to the next node's."""
        return -(-self._bytes // _PAGE) * _PAGE

    @property
    def _bytes(self) -> int:
        kind = self.weight.dtype or DType.F32
        return int(math.prod(self._dims) * kind.size)

    @property
    def _dims(self) -> tuple[int, ...]:
        return tuple(dim for dim in self.weight.shape or () if isinstance(dim, int))

    def serialize(self, plan: Sequence[int]) -> bytes:
        """Return the model file; ``plan`` is the plan of every node."""
        graph = [self._node(i, plan) for i in range(self.count)]
        graph.append(_text(2, "bench"))
        graph += (self._initializer(i) for i in range(self.count))
        graph += (_message(11, _value(name, spec)) for name, spec in self.inputs.items())
        graph.append(_message(12, _value(f"y{self.count}", self.outputs[0])))
        opsets = (_message(8, _text(1, d), _number(2, v)) for d, v in self._opsets())
        return b"".join((_number(1, _IR), *opsets, _message(7, *graph)))

    def _opsets(self) -> tuple[tuple[str, int], ...]:
        return ("", _OPSET), (self.domain, 1)

    def _node(self, index: int, plan: Sequence[int]) -> bytes:
        first, *middle, _ = self.inputs
        reads = (first, f"w{index}", *middle, f"y{index}")
        values = (_number(8, word & (1 << 64) - 1) for word in plan)
        others = (f"y{index + 1}_{i}" for i in range(1, len(self.outputs)))
        return _message(
            1,
            *(_text(1, name) for name in reads),
            _text(2, f"y{index + 1}"),
            *(_text(2, name) for name in others),
            _text(4, self.op),
            _message(5, _text(1, "plan"), *values, _number(20, _INTS)),
            _text(7, self.domain),
        )

    def _initializer(self, index: int) -> bytes:
        place = {"location": self.data, "offset": index * self.stride, "length": self._bytes}
        return _message(
            5,
            *(_number(1, dim) for dim in self._dims),
            _number(2, self.weight.dtype.onnx if self.weight.dtype else _FLOAT),
            _text(8, f"w{index}"),
            *(_message(13, _text(1, key), _text(2, str(value))) for key, value in place.items()),
            _number(14, _EXTERNAL),
        )


def _value(name: str, spec: TensorSpec) -> bytes:
    dims = (_number(1, dim) for dim in spec.shape or () if isinstance(dim, int))
    shape = _message(2, *(_message(1, dim) for dim in dims))
    code = spec.dtype.onnx if spec.dtype else _FLOAT
    return _text(1, name) + _message(2, _message(1, _number(1, code), shape))


def _number(field: int, value: int) -> bytes:
    return encode_varint(field << 3) + encode_varint(value)


def _text(field: int, value: str) -> bytes:
    return _message(field, value.encode())


def _message(field: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return encode_tag(field, len(body)) + body
