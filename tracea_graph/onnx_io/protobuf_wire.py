"""Protobuf wire format: remove large tensor data from a model file without parsing it.

Parsing a model needs memory of twice its size; scanning it needs none.  ``parse_lazily`` copies
the bytes of a serialized ``ModelProto`` except for the payloads of large tensors, and returns
where these are.  Source: protobuf encoding, field numbers of onnx.proto3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

__all__ = [
    "LARGE",
    "Field",
    "PayloadSpans",
    "Span",
    "WireError",
    "encode_tag",
    "encode_varint",
    "message_fields",
    "parse_lazily",
]

LARGE = 1024
"""Maximum bytes of tensor data that stays inside a proto."""

Buffer = bytes | memoryview

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = MappingProxyType({_FIXED64: 8, _FIXED32: 4})

_GRAPH = 7
_NODE, _INITIALIZER = 1, 5
_OP_TYPE, _ATTRIBUTE, _TENSOR = 4, 5, 5
_PAYLOADS = frozenset({4, 9, 10})
"""``float_data``, ``raw_data``, ``double_data``: packed, they are the little-endian array."""


class WireError(ValueError):
    """Raised for bytes that are not a serialized protobuf message."""


@dataclass(frozen=True, slots=True)
class Field:
    """Location of one field of a message in a buffer.

    The field with its tag is ``[start, end)``; its contents without the tag are ``[body, end)``.
    """

    number: int
    kind: int
    start: int
    body: int
    end: int


@dataclass(frozen=True, slots=True)
class Span:
    """Location of a tensor's data in the file, in bytes."""

    offset: int
    length: int


@dataclass
class PayloadSpans:
    """Locations of payloads that were removed from a model.

    The keys are indices of the graph's initializers and of its ``Constant`` nodes.
    """

    initializers: dict[int, Span] = field(default_factory=dict)
    constants: dict[int, Span] = field(default_factory=dict)


def message_fields(buf: Buffer, pos: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message in ``buf[pos:end]``; raises WireError if it is malformed."""
    while pos < end:
        start = pos
        key, pos = _read_varint(buf, pos, end)
        kind = key & 7
        body = pos
        if kind == _VARINT:
            _, pos = _read_varint(buf, pos, end)
        elif kind == _BYTES:
            length, body = _read_varint(buf, pos, end)
            pos = body + length
        elif kind in _FIXED:
            pos += _FIXED[kind]
        else:
            raise WireError(f"unknown wire type {kind} at byte {start}")
        if pos > end or key < 8:
            raise WireError(f"a field at byte {start} runs past the end")
        yield Field(key >> 3, kind, start, body, pos)


def encode_varint(number: int) -> bytes:
    """Encode a number as a protobuf varint."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def encode_tag(number: int, length: int) -> bytes:
    """Encode the tag and length of a length-delimited field."""
    return encode_varint(number << 3 | _BYTES) + encode_varint(length)


def parse_lazily(buf: Buffer) -> tuple[bytes, PayloadSpans]:
    """Return a model without its large tensor payloads, and the payloads' locations.

    Payloads of graph initializers and of ``Constant`` nodes are removed; subgraphs and functions
    stay whole.  Raises WireError for a malformed model.
    """
    spans = PayloadSpans()
    return _cut(
        buf, message_fields(buf, 0, len(buf)), {_GRAPH: lambda f: _graph(buf, f, spans)}
    ), spans


def _graph(buf: Buffer, graph: Field, spans: PayloadSpans) -> bytes:
    counts = {_NODE: 0, _INITIALIZER: 0}

    def node(f: Field) -> bytes | None:
        counts[_NODE] += 1
        return _constant(buf, f, spans.constants, counts[_NODE] - 1)

    def initializer(f: Field) -> bytes | None:
        counts[_INITIALIZER] += 1
        return _tensor(buf, f, spans.initializers, counts[_INITIALIZER] - 1)

    return _cut(buf, _within(buf, graph), {_NODE: node, _INITIALIZER: initializer})


def _constant(buf: Buffer, node: Field, spans: dict[int, Span], index: int) -> bytes | None:
    if node.end - node.body <= LARGE:
        return None
    parts = list(_within(buf, node))
    ops = [bytes(buf[f.body : f.end]) for f in parts if f.number == _OP_TYPE]
    if ops != [b"Constant"] or sum(f.number == _ATTRIBUTE for f in parts) != 1:
        return None

    def attribute(f: Field) -> bytes:
        tensor = {_TENSOR: lambda t: _tensor(buf, t, spans, index)}
        return _cut(buf, _within(buf, f), tensor)

    return _cut(buf, iter(parts), {_ATTRIBUTE: attribute})


def _tensor(buf: Buffer, tensor: Field, spans: dict[int, Span], index: int) -> bytes | None:
    if tensor.end - tensor.body <= LARGE:
        return None
    parts = list(_within(buf, tensor))
    payloads = [f for f in parts if f.number in _PAYLOADS and f.kind == _BYTES]
    if len(payloads) != 1 or payloads[0].end - payloads[0].body <= LARGE:
        return None
    cut = payloads[0]
    spans[index] = Span(cut.body, cut.end - cut.body)
    return b"".join(bytes(buf[f.start : f.end]) for f in parts if f is not cut)


def _within(buf: Buffer, outer: Field) -> Iterator[Field]:
    if outer.kind != _BYTES:
        raise WireError(f"field {outer.number} at byte {outer.start} is not a message")
    return message_fields(buf, outer.body, outer.end)


def _cut(buf: Buffer, parts: Iterator[Field], inner: Mapping[int, object]) -> bytes:
    """The message of ``parts``, with fields replaced by the functions in ``inner``."""
    out: list[bytes] = []
    for part in parts:
        visit = inner.get(part.number)
        body = visit(part) if callable(visit) else None
        if body is None:
            out.append(bytes(buf[part.start : part.end]))
        else:
            out += (encode_tag(part.number, len(body)), body)
    return b"".join(out)


def _read_varint(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while pos < end and shift < 70:
        byte = buf[pos]
        value |= (byte & 0x7F) << shift
        pos += 1
        if byte < 0x80:
            return value, pos
        shift += 7
    raise WireError(f"the bytes end inside a number at byte {pos}")
