"""Recognition of files that are not ONNX models, by their first bytes, with advice for each."""

from __future__ import annotations

import mmap
import zipfile
from pathlib import Path

__all__ = ["describe_other_format"]

_EXPORT = "export it to ONNX, and give that file"
_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (
        0,
        b"version https://git-lfs",
        "is a Git LFS pointer to a model: fetch it with git lfs pull",
    ),
    (4, b"ORTM", "is in ONNX Runtime's own format: give the model it was made from"),
    (4, b"TFL3", f"is a TensorFlow Lite model: {_EXPORT}"),
    (0, b"GGUF", f"is a GGUF file of weights: {_EXPORT}"),
    (0, b"\x89HDF\r\n", f"is HDF5, as Keras saves models: {_EXPORT}"),
    (0, b"\x93NUMPY", "is a NumPy array, not a model"),
    (0, b"\x1f\x8b", "is compressed with gzip: unpack it first"),
    (4, b"1AY&SY", "is compressed with bzip2: unpack it first"),
    (0, b"\xfd7zXZ\0", "is compressed with xz: unpack it first"),
    (0, b"\x28\xb5\x2f\xfd", "is compressed with zstd: unpack it first"),
    (257, b"ustar", "is a tar archive: unpack it, and give the .onnx file in it"),
)
_PICKLE = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))
_TORCH = "is a PyTorch file: export it with torch.onnx.export, and give that file"


def describe_other_format(view: mmap.mmap, path: Path) -> str:
    """Return, as a clause, what a file is and what to do; "" if it may be an ONNX model."""
    head = view[:512]
    for place, magic, said in _MAGIC:
        if head.startswith(magic, place):
            return said
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "is a web page, not the model: an error or login page was downloaded"
    if head.startswith(b"PK\x03\x04"):
        return _archive(path)
    if head.startswith(_PICKLE):
        return _TORCH
    length = int.from_bytes(head[:8], "little")
    if head[8:10] == b'{"' and length < len(view):
        return f"is a safetensors file of weights: {_EXPORT}"
    if text.startswith((b"{", b"[")):
        return "is JSON, not a model"
    return ""


def _archive(path: Path) -> str:
    """Describe the contents of a zip file."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile):
        names = []
    if any(name.endswith("data.pkl") for name in names):
        return _TORCH
    if names and all(name.endswith(".npy") for name in names):
        return "holds NumPy arrays, not a model: give it with --data"
    models = [name for name in names if name.endswith(".onnx")]
    which = f"give {models[0]}" if len(models) == 1 else "give the .onnx file in it"
    return f"is a zip archive: unpack it, and {which}"
