"""Export: nodes and weights become an ONNX file, with a page-aligned data file for large weights.

The file is written piece by piece: weights are streamed and never held twice.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from onnx import ModelProto, TensorProto

from tracea_graph.errors import UsageError
from tracea_graph.ir import Node, Weight
from tracea_graph.onnx_io import external_data, initializer_guards, result_model_shell, tensor_data
from tracea_graph.onnx_io.imported_model import Model
from tracea_graph.onnx_io.local_functions import LocalFunction
from tracea_graph.onnx_io.protobuf_wire import LARGE, encode_tag

__all__ = ["INLINE_LIMIT", "WrittenModel", "write"]

INLINE_LIMIT = 16 << 20
"""Maximum bytes of large weights that are stored inside the model file."""

PROTOBUF_LIMIT = (1 << 31) - 1

_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9

Piece = bytes | Weight
Places = Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class WrittenModel:
    """The files of one export.

    ``bytes`` is their total size; ``stored`` describes the data file, if there is one.
    """

    model: Path
    data: Path | None
    bytes: int
    stored: external_data.DataFile | None = None


def write(
    model: Model,
    nodes: Sequence[Node],
    weights: Mapping[str, Weight],
    out: Path,
    *,
    functions: Sequence[LocalFunction] = (),
    guard: Sequence[Node] = (),
    domain: str = "",
    metadata: Mapping[str, str] = {},
    node_metadata: Mapping[str, Mapping[str, str]] = {},
    single_file: bool = False,
    data_name: str | None = None,
    pool: external_data.DataPool | None = None,
    earlier: external_data.DataFile | None = None,
) -> WrittenModel:
    """Write ``nodes`` with the interface, metadata and settings of ``model``.

    * ``weights``: constants, of which only those that are read are written;
    * ``guard``: nodes that compute whether all guarded initializers have their defaults; ``nodes``
      run only if they have;
    * ``domain``: domain of ``functions`` and of the custom operators among ``nodes``;
    * ``node_metadata``: metadata by node name or first output;
    * ``pool``: file that large weights are written into, whatever their total size;
    * ``earlier``: a data file beside ``out`` that is reused without changes.

    Raises UsageError if the files cannot be written or if ``earlier`` holds other weights, and
    GraphError if a value has no source.
    """
    proto = result_model_shell.build_shell(
        model, nodes, functions, domain, metadata, node_metadata, guard
    )
    needed = result_model_shell.referenced_weights(model, proto, nodes, weights)
    stored = _stored(
        model, needed | (initializer_guards.constants_of_guard(model) if guard else {})
    )
    large = [w for w in stored.values() if w.nbytes > LARGE]
    aside = not single_file and sum(w.nbytes for w in large) > INLINE_LIMIT
    _check_target(model, out)
    try:
        data: Path | None = None
        places: Places = {}
        kept: external_data.DataFile | None = None
        if pool is not None:
            data, places = pool.path, pool.places(large)
        elif aside:
            kept = earlier or _write_data(large, out, data_name)
            if not kept.fits(large):
                raise UsageError(f"{kept.path.name} does not hold the weights of this model")
            data, places = kept.path, kept.places
        pieces = _pieces(proto, model, stored, places, data.name if data else "")
        size = sum(map(_size, pieces))
        if size > PROTOBUF_LIMIT:
            raise UsageError(
                f"{out.name} would exceed 2 GB, the size limit of an ONNX file: "
                "write the weights to a data file"
            )
        with _replacing(out) as file:
            for piece in pieces:
                _emit(piece, file)
    except OSError as error:
        raise UsageError(_error_text(out, error)) from error
    return WrittenModel(out, data, size + (data.stat().st_size if data else 0), kept)


def _check_target(model: Model, out: Path) -> None:
    if out.exists() and out.samefile(model.path):
        raise UsageError(f"{out} is the input itself: choose another output")
    if not out.parent.is_dir():
        raise UsageError(f"cannot write {out}: the folder {out.parent} does not exist")


def _stored(model: Model, needed: Mapping[str, Weight]) -> dict[str, Weight]:
    """Everything that becomes an initializer, in the original's order first."""
    known = {**model.defaults, **needed}
    first = [t.name for t in model.skeleton.graph.initializer if t.name in known]
    return {name: known[name] for name in dict.fromkeys([*first, *known])}


def _write_data(weights: Sequence[Weight], out: Path, name: str | None) -> external_data.DataFile:
    """Write the data file, named after its content unless a name is given."""
    temporary = _temporary(out.with_suffix(".data"))
    try:
        with temporary.open("xb") as file:
            places, digest = external_data.write_data(file, weights)
        path = out.parent / (name or f"{out.stem}.{digest[:10]}.data")
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return external_data.DataFile(path, digest, places)


def _pieces(
    proto: ModelProto, model: Model, stored: Mapping[str, Weight], places: Places, data: str
) -> list[Piece]:
    """The file's content in order; protobuf merges repeated fields wherever they occur."""
    body: list[Piece] = [proto.graph.SerializeToString(deterministic=True)]
    originals = {t.name: t for t in model.skeleton.graph.initializer}
    for name, weight in stored.items():
        original = originals.get(name)
        if original is not None and not _is_original(model, weight):
            original = None
        body += _tensor(name, weight, original, places, data)
    head = ModelProto()
    head.CopyFrom(proto)
    head.ClearField("graph")
    return [
        head.SerializeToString(deterministic=True), encode_tag(_GRAPH, sum(map(_size, body))),
        *body,
    ]  # fmt: skip


def _is_original(model: Model, weight: Weight) -> bool:
    known = model.defaults.get(weight.name) or model.graph.weights.get(weight.name)
    return known is weight


def _tensor(
    name: str, weight: Weight, original: TensorProto | None, places: Places, data: str
) -> list[Piece]:
    """One initializer field, its data inline or by reference."""
    if original is not None and weight.nbytes <= LARGE and not external_data.is_external(original):
        whole = original.SerializeToString(deterministic=True)
        return [encode_tag(_INITIALIZER, len(whole)), whole]
    bare = (
        tensor_data.tensor_without_data(original)
        if original is not None
        else TensorProto(name=name)
    )
    bare.data_type = weight.dtype.onnx
    bare.dims[:] = weight.shape
    if name in places:
        bare.data_location = TensorProto.EXTERNAL
        offset, length = places[name]
        for key, value in (("location", data), ("offset", offset), ("length", length)):
            bare.external_data.add(key=key, value=str(value))
        whole = bare.SerializeToString(deterministic=True)
        return [encode_tag(_INITIALIZER, len(whole)), whole]
    start = bare.SerializeToString(deterministic=True)
    size = tensor_data.stored_size(weight)
    payload = encode_tag(_RAW_DATA, size)
    length = len(start) + len(payload) + size
    return [encode_tag(_INITIALIZER, length) + start + payload, weight]


def _size(piece: Piece) -> int:
    return tensor_data.stored_size(piece) if isinstance(piece, Weight) else len(piece)


def _emit(piece: Piece, file: IO[bytes]) -> None:
    if isinstance(piece, Weight):
        for chunk in tensor_data.raw_chunks(piece):
            file.write(chunk)
    else:
        file.write(piece)


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that replaces ``path`` once it is complete, or leaves no trace."""
    temporary = _temporary(path)
    try:
        with temporary.open("xb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _temporary(path: Path) -> Path:
    """Return a new name in the folder, of bounded length."""
    mark = hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]
    return path.with_name(f".tracea-{mark}.{os.getpid()}")


def _error_text(out: Path, error: OSError) -> str:
    advice = {
        errno.ENOSPC: "free some space or choose another folder",
        errno.EACCES: "choose a folder you may write to",
        errno.EPERM: "choose a folder you may write to",
        errno.EROFS: "choose a folder you may write to",
    }.get(error.errno or 0, "choose another output")
    return f"cannot write {out}: {error.strerror or error}; {advice}"
