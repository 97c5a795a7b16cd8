"""External tensor data: permitted locations, and the aligned data file that export writes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from tracea_graph.errors import ModelError
from tracea_graph.ir import Weight
from tracea_graph.onnx_io.tensor_data import FileSegment, dtype_of, raw_chunks, stored_size

__all__ = [
    "ALIGNMENT", "DataFile", "DataPool", "embed_external_data", "is_external", "locate_external",
    "tensors_of",
    "write_data",
]  # fmt: skip

ALIGNMENT = 4096
"""Alignment of offsets in the data file in bytes: one page, so a runtime can map weights."""


def is_external(proto: TensorProto) -> bool:
    return proto.data_location == TensorProto.EXTERNAL


def locate_external(proto: TensorProto, model: Path) -> FileSegment:
    """Return where an external tensor's bytes are.

    Raises ModelError if the file is missing, outside the model's folder, or too short.
    """
    entries = {e.key: e.value for e in proto.external_data}
    path = _resolve(entries.get("location", ""), model, proto.name)
    dtype, shape = dtype_of(proto), tuple(proto.dims)
    whole = path.stat().st_size
    try:
        offset = int(entries.get("offset") or 0)
        length = int(entries["length"]) if entries.get("length") else whole - offset
    except ValueError:
        raise ModelError(f"the external data of {proto.name!r} has no numeric offset") from None
    if not 0 <= offset <= whole:
        raise ModelError(
            f"the external data of {proto.name!r} begins at byte {offset} of {path.name}, "
            f"which has only {whole}"
        )
    if length < 0 or offset + length > whole:
        raise ModelError(
            f"{proto.name!r} needs bytes {offset} to {offset + length} of {path.name}, "
            f"which has only {whole}"
        )
    return FileSegment(path, offset, length, dtype, shape)


def embed_external_data(skeleton: ModelProto, model: Path) -> None:
    """Read external tensors of subgraphs, attributes and functions into the proto itself."""
    nodes = [*skeleton.graph.node, *(n for f in skeleton.functions for n in f.node)]
    for proto in _attribute_tensors(nodes):
        if is_external(proto):
            proto.raw_data = b"".join(locate_external(proto, model).chunks())
            proto.ClearField("data_location")
            proto.ClearField("external_data")


def write_data(
    file: IO[bytes], weights: Iterable[Weight]
) -> tuple[dict[str, tuple[int, int]], str]:
    """Stream weights to an empty file; return their locations and the file's SHA-256.

    Equal weights are written once.  A location is ``(offset, length)`` in bytes; offsets are
    multiples of :data:`ALIGNMENT`.
    """
    whole = hashlib.sha256()
    places: dict[str, tuple[int, int]] = {}
    seen: dict[bytes, tuple[int, int]] = {}
    end = 0
    for weight in weights:
        padding = bytes(-end % ALIGNMENT)
        before, own, length = whole.copy(), hashlib.sha256(), 0
        whole.update(padding)
        file.write(padding)
        for chunk in raw_chunks(weight):
            file.write(chunk)
            whole.update(chunk)
            own.update(chunk)
            length += len(chunk)
        place = seen.setdefault(own.digest(), (end + len(padding), length))
        places[weight.name] = place
        if place[0] < end:
            whole = before
            file.seek(end)
            file.truncate()
        else:
            end = sum(place)
    return places, whole.hexdigest()


@dataclass(frozen=True)
class DataFile:
    """A written data file: its SHA-256, and ``(offset, length)`` in bytes of each weight."""

    path: Path
    sha256: str
    places: Mapping[str, tuple[int, int]]

    def intact(self) -> bool:
        """Whether the file exists and its content is unchanged.

        A symbolic link counts as missing: onnx's checker refuses links, whatever their target.
        """
        if self.path.is_symlink():
            return False
        try:
            with self.path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256
        except OSError:
            return False

    def fits(self, weights: Iterable[Weight]) -> bool:
        """Whether the file holds exactly these weights, by name and size."""
        return {w.name: stored_size(w) for w in weights} == {
            name: length for name, (_, length) in self.places.items()
        }


class DataPool:
    """A growing data file shared by several temporary models in its folder.

    A weight is identified by name and shape, and written on first use.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._places: dict[tuple[str, tuple[int, ...]], tuple[int, int]] = {}
        self._end = 0

    def places(self, weights: Iterable[Weight]) -> dict[str, tuple[int, int]]:
        """Append weights the file lacks; return each weight's ``(offset, length)`` in bytes."""
        found: dict[str, tuple[int, int]] = {}
        with self.path.open("ab") as file:
            for weight in weights:
                key = weight.name, weight.shape
                if key not in self._places:
                    self._places[key] = self._append(file, weight)
                found[weight.name] = self._places[key]
        return found

    def _append(self, file: IO[bytes], weight: Weight) -> tuple[int, int]:
        start = self._end + -self._end % ALIGNMENT
        file.write(bytes(start - self._end))
        length = sum(file.write(chunk) for chunk in raw_chunks(weight))
        self._end = start + length
        return start, length


def _resolve(location: str, model: Path, tensor: str) -> Path:
    """Return the file that a location names.

    The model itself may be a link into another folder (as in download caches): data beside the
    link or beside its target is accepted, any other location is not.
    """
    where = f"the external data of {tensor!r}"
    if not location or "\0" in location:
        raise ModelError(f"{where} names no file")
    if Path(location).is_absolute() or ".." in Path(location.replace("\\", "/")).parts:
        raise ModelError(f"{where} is at {location!r}, outside the model's folder")
    path = model.parent / location
    if not path.is_file():
        raise ModelError(f"{where} is missing: put {location!r} beside {model.name}")
    real = path.resolve()
    roots = (model.parent.resolve(), model.resolve().parent)
    if not any(real.is_relative_to(root) for root in roots):
        raise ModelError(f"{where} is at {location!r}, a link out of the model's folder")
    return real


def tensors_of(model: ModelProto) -> Iterator[TensorProto]:
    """Yield every dense tensor of a model: initializers, attributes, subgraphs, functions."""
    yield from model.graph.initializer
    yield from _attribute_tensors(
        [*model.graph.node, *(n for f in model.functions for n in f.node)]
    )


def _attribute_tensors(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield from _tensors(attribute)


def _tensors(attribute: AttributeProto) -> Iterator[TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    bodies: list[GraphProto] = [*attribute.graphs]
    if attribute.HasField("g"):
        bodies.append(attribute.g)
    for body in bodies:
        yield from body.initializer
        yield from _attribute_tensors(body.node)
