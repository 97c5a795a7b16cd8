"""Keeping the original: its bytes as they are, its external data linked or copied beside it."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
from onnx import StringStringEntryProto, TensorProto

from tracea_graph.onnx_io.external import ALIGNMENT, is_external, locate, tensors_of
from tracea_graph.onnx_io.model import Model
from tracea_graph.onnx_io.writer import Written

__all__ = ["library_digest", "write_original"]

_CHUNK = 1 << 22


def write_original(model: Model, out: Path) -> Written:
    """Write the model as it was read.

    Without external data the file is copied byte for byte.  Else its data file is linked (or,
    where that is impossible, copied) beside ``out`` and only the references change; several data
    files become one.
    """
    proto = onnx.load(model.path, load_external_data=False)
    outside = [t for t in tensors_of(proto) if is_external(t)]
    if not outside:
        shutil.copyfile(model.path, out)
        return Written(out, None, out.stat().st_size)
    files = sorted({locate(t, model.path).path for t in outside})
    data, starts = _gather(files, out)
    for tensor in outside:
        segment = locate(tensor, model.path)
        _refer(tensor, data.name, starts[segment.path] + segment.offset, segment.length)
    out.write_bytes(proto.SerializeToString())
    return Written(out, data, out.stat().st_size + data.stat().st_size)


def library_digest(path: Path) -> str:
    """SHA-256 of the library a model was written with; empty if it needs none."""
    proto = onnx.load(path, load_external_data=False)
    return next((p.value for p in proto.metadata_props if p.key == "tracea.library.sha256"), "")


def _gather(files: Sequence[Path], out: Path) -> tuple[Path, dict[Path, int]]:
    """One data file beside ``out`` that holds all of ``files``; where each begins in it."""
    joined = out.with_name(f".{out.stem}.joined")
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
    digest = hashlib.sha256()
    for chunk in _chunks(joined):
        digest.update(chunk)
    data = out.with_name(f"{out.stem}.{digest.hexdigest()[:10]}.data")
    os.replace(joined, data)
    return data, starts


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source.resolve(), target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as source:
        while chunk := source.read(_CHUNK):
            yield chunk


def _refer(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.append(StringStringEntryProto(key=key, value=value))
