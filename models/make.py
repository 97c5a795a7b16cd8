"""Write models of the zoo: ``python -m models.make NAME|NAME-FORM|all [-o DIR]``.

A stored graph (``models/graphs/NAME.onnx.gz``) is the exporter's output in which the doc string of
every large float weight, instead of values, holds the rule that regenerates them (see
``rules.py``).  The values depend only on the tensor's name and ``SEED``, so every machine gets
identical bytes.  Weights are streamed to disk: peak memory is one chunk, not one model.
"""

from __future__ import annotations

import argparse
import gzip
import math
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx

__all__ = [
    "FORMS",
    "GRAPHS",
    "KINDS",
    "SEED",
    "available",
    "load_stored",
    "make",
    "regrow",
    "stripped",
]

GRAPHS = Path(__file__).with_name("graphs")
BUILD = Path(__file__).with_name("build")
SEED = 20240607
FORMS = ("minilm-dynamic", "minilm-qdq", "bert-base-qdq", "resnet50-qdq", "mobilenetv2-qdq",
         "efficientnet-b0-qdq", "detector-qdq", "tiny-bert-dynamic",
         "tiny-bert-qdq", "minilm-fp16", "resnet50-fp16", "detector-fp16", "tiny-bert-fp16",
         "bert-base-fp16", "vit-base-fp16", "gpt2-fp16", "mobilenetv2-fp16",
         "convnext-tiny-fp16", "efficientnet-b0-fp16", "whisper-tiny-fp16",
         "minilm-bf16", "tiny-bert-bf16", "bert-base-pruned", "tiny-bert-pruned",
         "bert-base-rank128", "minilm-rank96")  # fmt: skip
"""Models made from a stored one by ``models.quantize``, ``models.halve``, ``models.prune`` and
``models.factor``.
"""
KINDS = ("normal", "even", "uniform")
_CHUNK = 1 << 20


def available() -> tuple[str, ...]:
    """Return the names of the stored models, sorted."""
    return tuple(sorted(path.name.removesuffix(".onnx.gz") for path in GRAPHS.glob("*.onnx.gz")))


def load_stored(name: str) -> onnx.ModelProto:
    """Return the stored graph of ``name``, whose large initializers have no values.

    Raises:
        KeyError: no such model is stored.
    """
    path = GRAPHS / f"{name}.onnx.gz"
    if not path.is_file():
        raise KeyError(f"no model '{name}' in the zoo, only {', '.join(available())}")
    model = onnx.ModelProto()
    model.ParseFromString(gzip.decompress(path.read_bytes()))
    return model


def regrow(tensor: onnx.TensorProto) -> Iterator[np.ndarray]:
    """Yield the float32 values of a stripped tensor in flat chunks of about 4 MB.

    Raises:
        ValueError: the tensor carries no rule.
    """
    if not stripped(tensor):
        raise ValueError(f"tensor '{tensor.name}' has no rule to regrow it")
    kind, *numbers = tensor.doc_string.split()
    a, b = map(np.float32, numbers)
    seeds = np.random.SeedSequence([SEED, zlib.crc32(tensor.name.encode())])
    generator = np.random.Generator(np.random.SFC64(seeds))
    row = math.prod(tensor.dims[1:])
    left, most = math.prod(tensor.dims), max(_CHUNK // row, 1) * row if kind == "even" else _CHUNK
    while left:
        count = min(left, most)
        if kind == "uniform":
            chunk = a + (b - a) * generator.random(count, dtype=np.float32)
        else:
            chunk = a + b * generator.standard_normal(count, dtype=np.float32)
        if kind == "even":
            rows = chunk.reshape(-1, tensor.dims[1], row // tensor.dims[1])
            rows -= rows.mean(1, keepdims=True) - a
        left -= count
        yield chunk.astype("<f4", copy=False)


def stripped(tensor: onnx.TensorProto) -> bool:
    """Return whether a tensor's values must be regenerated."""
    rule = tensor.doc_string.startswith(tuple(f"{kind} " for kind in KINDS))
    return rule and tensor.data_type == onnx.TensorProto.FLOAT


def make(name: str, directory: Path = BUILD, hollow: bool = False) -> Path:
    """Write ``directory/NAME.onnx`` with inline weights and return its path.

    In a ``hollow`` model, large weights are zero except for one number that makes each unique;
    it is written quickly and suffices for planning.
    """
    if name in FORMS:
        return _converted(name, directory)
    model = load_stored(name)
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / f"{name}.onnx"
    part = target.with_suffix(f".{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            _write(model, file.write, _hollow if hollow else regrow)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return target


def _converted(name: str, directory: Path) -> Path:
    from models import factor, halve, prune, quantize

    stem, _, form = name.rpartition("-")
    convert = halve.halve if form in halve.FORMS else quantize.quantize
    convert = prune.prune if form in prune.FORMS else convert
    convert = factor.factor if form in factor.FORMS else convert
    target = directory / f"{name}.onnx"
    with TemporaryDirectory() as folder:
        convert(make(stem, Path(folder)), form, Path(folder) / target.name)
        directory.mkdir(parents=True, exist_ok=True)
        shutil.move(Path(folder) / target.name, target)
    return target


def _hollow(tensor: onnx.TensorProto) -> Iterator[np.ndarray]:
    """Yield one number and then zeros, in chunks."""
    left, first = math.prod(tensor.dims), zlib.crc32(tensor.name.encode()) % 9973 + 1
    while left:
        chunk = np.zeros(min(left, _CHUNK), "<f4")
        chunk[0], first = first, 0
        left -= chunk.size
        yield chunk


def _write(
    model: onnx.ModelProto,
    write: Callable[[bytes], object],
    values: Callable[[onnx.TensorProto], Iterator[np.ndarray]],
) -> None:
    """Serialize ``model`` as protobuf does, but regrow and write one weight at a time."""
    tensors = list(model.graph.initializer)
    heads = [_head(tensor) for tensor in tensors]
    del model.graph.initializer[:]
    graph = model.graph.SerializeToString(deterministic=True)
    model.ClearField("graph")
    total = len(graph) + sum(
        len(_field(_INITIALIZER, len(head) + _size(tensor))) + len(head) + _size(tensor)
        for tensor, head in zip(tensors, heads, strict=True)
    )
    write(model.SerializeToString(deterministic=True))
    write(_field(_GRAPH, total))
    write(graph)
    for tensor, head in zip(tensors, heads, strict=True):
        write(_field(_INITIALIZER, len(head) + _size(tensor)))
        write(head)
        if stripped(tensor):
            for chunk in values(tensor):
                write(chunk.tobytes())


_GRAPH = onnx.ModelProto.DESCRIPTOR.fields_by_name["graph"].number
_INITIALIZER = onnx.GraphProto.DESCRIPTOR.fields_by_name["initializer"].number
_RAW_DATA = onnx.TensorProto.DESCRIPTOR.fields_by_name["raw_data"].number


def _size(tensor: onnx.TensorProto) -> int:
    return 4 * math.prod(tensor.dims) if stripped(tensor) else 0


def _head(tensor: onnx.TensorProto) -> bytes:
    """Serialize a tensor up to the bytes of its values, which a stripped one lacks."""
    if not stripped(tensor):
        return bytes(tensor.SerializeToString(deterministic=True))
    bare = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    return bytes(bare.SerializeToString(deterministic=True)) + _field(_RAW_DATA, _size(tensor))


def _field(number: int, length: int) -> bytes:
    """Return tag and length of a length-delimited protobuf field."""
    return _varint(number << 3 | 2) + _varint(length)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def main() -> None:
    """Parse the command line and write the models asked for."""
    parser = argparse.ArgumentParser(prog="python -m models.make", description=__doc__)
    parser.add_argument("name", choices=(*available(), *FORMS, "all"))
    parser.add_argument("-o", dest="directory", type=Path, default=BUILD, metavar="DIR")
    args = parser.parse_args()
    for name in available() if args.name == "all" else (args.name,):
        print(make(name, args.directory))


if __name__ == "__main__":
    main()
