"""Whatever is wrong with a model: one clear line, exit code 2, nothing written."""

from __future__ import annotations

import gzip
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.cli.support import UNTIMED, refused
from tests.tiny import product
from tracea_graph.cli import optimize_main

Ends = tuple[str, int, list[int]]


def write(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[Ends],
    outputs: list[Ends],
    opset: int = 17,
) -> None:
    ends = [[helper.make_tensor_value_info(*end) for end in side] for side in (inputs, outputs)]
    graph = helper.make_graph(nodes, "g", *ends)
    opsets = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


X, Y = ("x", TensorProto.FLOAT, [2]), ("y", TensorProto.FLOAT, [2])
RELU = helper.make_node("Relu", ["x"], ["y"])


def half(path: Path) -> None:
    data = product(path).read_bytes()
    path.write_bytes(data[: len(data) // 2])


def corrupt(path: Path) -> None:
    data = bytearray(product(path).read_bytes())
    for place in range(0, 400, 7):
        data[place] ^= 0xA5
    path.write_bytes(bytes(data))


def cyclic(path: Path) -> None:
    write(path, [helper.make_node("Add", ["x", "y"], ["a"]), RELU_OF_A], [X], [Y])


RELU_OF_A = helper.make_node("Relu", ["a"], ["y"])


def mixed(path: Path) -> None:
    ends: list[Ends] = [X, ("i", TensorProto.INT64, [2])]
    write(path, [helper.make_node("Add", ["x", "i"], ["y"])], ends, [Y])


def wrongly_declared(path: Path) -> None:
    write(path, [RELU], [X], [("y", TensorProto.INT64, [2])])


def batch_first(path: Path) -> None:
    """ONNX has this form of GRU; ONNX Runtime has no kernel for it."""
    sizes = {"x": [2, 3, 4], "w": [1, 6, 4], "r": [1, 6, 2]}
    gru = helper.make_node("GRU", [*sizes], ["y"], hidden_size=2, layout=1)
    inputs = [(name, TensorProto.FLOAT, shape) for name, shape in sizes.items()]
    write(path, [gru], inputs, [("y", TensorProto.FLOAT, [2, 9, 1, 2])])


def external(path: Path, location: str) -> None:
    product(path, external="weights.data")
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    path.write_bytes(model.SerializeToString())


def truncated_data(path: Path) -> None:
    external(path, "weights.data")
    path.with_name("weights.data").write_bytes(b"short")


def linked_data(path: Path) -> None:
    path.with_name("link.data").symlink_to("/etc/hostname")
    external(path, "link.data")


def zipped(path: Path, *names: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"")


def tarred(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        archive.add("/etc/hostname", "m.onnx")


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (half, "bad.onnx is not an ONNX model, or is truncated"),
    "corrupt": (corrupt, "bad.onnx is not an ONNX model"),
    "text": (lambda p: p.write_text("hello\n" * 9), "bad.onnx is not an ONNX model"),
    "runtime's": (lambda p: p.write_bytes(b"\x24\0\0\0ORTM"), "give the model it was made from"),
    "git lfs": (
        lambda p: p.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
        "bad.onnx is a Git LFS pointer to a model: fetch it with git lfs pull",
    ),
    "web page": (
        lambda p: p.write_text("\n<!DOCTYPE html><html>"),
        "is a web page",
    ),
    "json": (lambda p: p.write_text('{"a": 1}'), "bad.onnx is JSON, not a model"),
    "torch": (lambda p: zipped(p, "m/data.pkl"), "export it with torch.onnx.export"),
    "torch, old": (lambda p: p.write_bytes(b"\x80\x02\x8a\nl\xfc"), "bad.onnx is a PyTorch file"),
    "arrays": (
        lambda p: zipped(p, "x.npy"),
        "holds NumPy arrays, not a model",
    ),
    "zip": (lambda p: zipped(p, "a/m.onnx", "readme"), "unpack it, and give a/m.onnx"),
    "gzip": (lambda p: p.write_bytes(gzip.compress(b"a" * 99)), "compressed with gzip: unpack it"),
    "tar": (tarred, "bad.onnx is a tar archive"),
    "hdf5": (lambda p: p.write_bytes(b"\x89HDF\r\n\x1a\n"), "as Keras saves models"),
    "safetensors": (
        lambda p: p.write_bytes((20).to_bytes(8, "little") + b'{"w": 1}' + bytes(40)),
        "is a safetensors file of weights",
    ),
    "empty": (lambda p: p.touch(), "bad.onnx is empty"),
    "folder": (lambda p: p.mkdir(), "bad.onnx is a folder: give an .onnx file"),
    "missing": (lambda p: None, "bad.onnx does not exist"),
    "newer": (lambda p: write(p, [RELU], [X], [Y], 999), "opset 999 is not supported: convert"),
    "older": (lambda p: write(p, [RELU], [X], [Y], 5), "opset 5 is not supported: convert"),
    "cyclic": (cyclic, "the graph has a cycle"),
    "mixed dtypes": (mixed, "the model is invalid: Type Error"),
    "declared dtype": (wrongly_declared, "the model is invalid: Type Error"),
    "not implemented": (batch_first, "ONNX Runtime does not run the model: layout_ == 0 was fa"),
    "no graph": (lambda p: write(p, [], [], []), "the graph has no outputs"),
    "no outputs": (lambda p: write(p, [RELU], [X], []), "the graph has no outputs"),
    "no such data": (lambda p: external(p, "gone.data"), "put 'gone.data' beside bad.onnx"),
    "data above": (lambda p: external(p, "../weights.data"), "outside the model's folder"),
    "data elsewhere": (lambda p: external(p, "/etc/hostname"), "outside the model's folder"),
    "data by a link": (linked_data, "a link out of the model's folder"),
    "short data": (truncated_data, "which has only 5"),
}


def test_a_name_that_is_nearly_right(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    product(home / "model.onnx")
    assert "did you mean model.onnx?" in refused(capsys, "modell.onnx", *UNTIMED)
    (home / "folder").mkdir()
    product(home / "folder" / "m.onnx")
    assert "folder is a folder: give folder/m.onnx" in refused(capsys, "folder", *UNTIMED)


@pytest.mark.parametrize("kind", BAD)
def test_an_invalid_model(home: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    make, said = BAD[kind]
    make(home / "bad.onnx")
    assert said in refused(capsys, "bad.onnx", *UNTIMED)


def test_an_operator_nobody_knows_is_no_error_unless_it_has_to_run(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may belong to a library that the caller has and this tool has not."""
    write(home / "m.onnx", [helper.make_node("Strange", ["x"], ["y"])], [X], [Y])
    assert "ONNX Runtime cannot load m.onnx" in refused(capsys, "m.onnx", "--keep", "all")
    assert optimize_main(["m.onnx", "--keep", "all", "--no-verify"]) == 0
    assert (home / "m.tracea.onnx").read_bytes() == (home / "m.onnx").read_bytes()
    assert "kept original: no rewrite applies\n" in capsys.readouterr().out
