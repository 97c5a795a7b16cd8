"""The original model on disk: its files, its library, and writing it unchanged as the result."""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto, TensorProto

from tracea_graph.errors import ModelError, UsageError
from tracea_graph.onnx_io.external_data import ALIGNMENT, is_external, locate_external, tensors_of
from tracea_graph.onnx_io.imported_model import Model
from tracea_graph.onnx_io.model_writer import WrittenModel
from tracea_graph.onnx_io.node_conversion import OWN_DOMAINS, all_nodes
from tracea_graph.onnx_io.protobuf_wire import WireError, parse_lazily
from tracea_graph.temporary_files import open_regular_file
from tracea_graph.toolchain.platforms import HERE

__all__ = [
    "BACKEND_KEY", "PLATFORMS_KEY", "backend_of", "files_of", "is_tracea_result", "library_of",
    "node_count", "write_original",
]  # fmt: skip

_CHUNK = 1 << 22
_LIBRARY_KEY = "tracea.library.sha256"
BACKEND_KEY = "tracea.library.backend"
"""Metadata key for the backend of a result's programs."""
PLATFORMS_KEY = "tracea.library.platforms"
"""Metadata key for the SHA-256 of each platform's library, unless the only library is that for
this machine: ``NAME=DIGEST``, separated by spaces."""


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the model file and its data files; raises ModelError if it is not a model."""
    outside = [t for t in tensors_of(_parsed(path)) if is_external(t)]
    return (path, *sorted({locate_external(t, path).path for t in outside}))


def node_count(path: Path) -> int:
    """Return the number of nodes of a model's graph; raises ModelError if it is not a model."""
    return len(_parsed(path).graph.node)


def is_tracea_result(model: Model) -> bool:
    """Whether the model has custom operators of an earlier run of this tool."""
    return any(node.domain.startswith(OWN_DOMAINS) for node in all_nodes(model.skeleton.graph))


def backend_of(model: Model) -> str:
    """Return the name of the backend of a result's programs; "" if it is not recorded."""
    return next((p.value for p in model.skeleton.metadata_props if p.key == BACKEND_KEY), "")


def library_of(path: Path, named: Path | None = None) -> Path | None:
    """Return the library a model runs with; None if it runs on standard operators alone.

    The library is ``named``, or the one beside the model for this platform.  It must be identical
    to the library that the model was written with.  If the model does not record that library,
    only ``named`` is considered.  Raises ModelError if the file is not a model.  Raises UsageError
    if ``named`` does not exist, if the library belongs to another model, or if a model without
    function bodies has no library.
    """
    proto = _parsed(path)
    nodes = all_nodes(proto.graph)
    custom = {(n.domain, n.op_type) for n in nodes if n.domain.startswith(OWN_DOMAINS)}
    facts = {p.key: p.value for p in proto.metadata_props}
    wanted, library = facts.get(_LIBRARY_KEY, ""), named or path.with_suffix(".so")
    if PLATFORMS_KEY in facts:
        digests = dict(word.split("=", 1) for word in facts[PLATFORMS_KEY].split())
        wanted = digests.get(HERE.name, "")
        library = named or _of_this_platform(path, wanted)
    if named is not None and not named.is_file():
        raise UsageError(f"the library {named} does not exist")
    if library.is_file() and (named or (custom and wanted)):
        if wanted and _sha256(library) != wanted:
            raise UsageError(f"{library} is not the library {path.name} was written with")
        return library
    if not custom <= {(f.domain, f.name) for f in proto.functions}:
        how = f": put {library.name} beside it" if wanted else ", and does not record which one"
        if PLATFORMS_KEY in facts and not wanted:
            how = f", and has none for {HERE.name}"
        raise UsageError(f"{path} cannot run without its library{how}")
    return None


def _of_this_platform(path: Path, wanted: str) -> Path:
    """Return the library for this platform, by its architecture's name if it has one."""
    own, plain = path.with_suffix(HERE.ending), path.with_suffix(HERE.suffix)
    return own if own.is_file() and _sha256(own) == wanted else plain


def write_original(path: Path, out: Path) -> WrittenModel:
    """Write the model at ``path`` unchanged.

    Without external data the file is copied byte for byte.  Otherwise its data file is hard-linked
    beside ``out``, or copied if it cannot be linked, and only the references to it change.
    Several data files are merged into one.
    """
    _, *files = files_of(path)
    if not files:
        shutil.copyfile(path, out)
        return WrittenModel(out, None, out.stat().st_size)
    proto = onnx.load(path, load_external_data=False)
    data, starts = _gather(files, out)
    for tensor in (t for t in tensors_of(proto) if is_external(t)):
        segment = locate_external(tensor, path)
        _refer(tensor, data.name, starts[segment.path] + segment.offset, segment.length)
    out.write_bytes(proto.SerializeToString())
    return WrittenModel(out, data, out.stat().st_size + data.stat().st_size)


def _parsed(path: Path) -> ModelProto:
    """Parse the model without the data of its large tensors."""
    try:
        with (
            open_regular_file(path) as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view,
            memoryview(view) as whole,
        ):
            proto = ModelProto()
            proto.ParseFromString(parse_lazily(whole)[0])
            return proto
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, WireError, DecodeError) as error:
        raise ModelError(f"{path.name} is not an ONNX model: {error}") from error


def _gather(files: Sequence[Path], out: Path) -> tuple[Path, dict[Path, int]]:
    """Create one data file beside ``out`` from all ``files``; return each one's offset in it."""
    joined = out.with_name(".tracea-joined")
    starts: dict[Path, int] = {}
    if len(files) == 1:
        starts[files[0]] = 0
        _link(files[0], joined)
    else:
        with joined.open("wb") as target:
            for file in files:
                target.seek(-(-target.tell() // ALIGNMENT) * ALIGNMENT)
                starts[file] = target.tell()
                for chunk in _chunks(file):
                    target.write(chunk)
    data = out.with_name(f"{out.stem}.{_sha256(joined)[:10]}.data")
    os.replace(joined, data)
    return data, starts


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source.resolve(), target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def _sha256(file: Path) -> str:
    with file.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as source:
        while chunk := source.read(_CHUNK):
            yield chunk


def _refer(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
