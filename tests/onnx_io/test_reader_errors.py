"""Every kind of bad input is refused with one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, ModelProto, TensorProto
from onnx.external_data_helper import set_external_data

from tests.onnx_io.samples import I64, mlp, model, node, read, save, tensor, value
from tracea_graph.errors import ModelError
from tracea_graph.onnx_io import load

X, Y = value("x", [2]), value("y", [2])


def relu(**options: Any) -> ModelProto:
    return model([node("Relu", "x", "y")], [X], [Y], **options)


def outside(**entries: Any) -> ModelProto:
    """An MLP whose first weight (2048 bytes) lies in an external file."""
    proto = mlp()
    proto.graph.initializer[0].raw_data = b"-"
    set_external_data(proto.graph.initializer[0], **entries)
    proto.graph.initializer[0].ClearField("raw_data")
    return proto


def cyclic() -> ModelProto:
    return model([node("Add", "x b", "a"), node("Relu", "a", "b")], [X], [value("b", [2])])


def unknown_type() -> ModelProto:
    proto = mlp()
    proto.graph.initializer[0].data_type = 99
    return proto


def misfit() -> ModelProto:
    proto = mlp()
    proto.graph.initializer[0].dims[0] = 9
    return proto


def misfit_attribute() -> ModelProto:
    short = TensorProto(data_type=TensorProto.FLOAT, dims=[2], raw_data=bytes(20))
    return model([node("Constant", "", "c", value=short), node("Add", "x c", "y")], [X], [Y])


def nameless() -> ModelProto:
    proto = relu()
    proto.ClearField("opset_import")
    return proto


INVALID: dict[str, tuple[Callable[[], ModelProto], str]] = {
    "old opset": (lambda: relu(opset=6), "opset 6 is not supported"),
    "new opset": (lambda: relu(opset=999), "opset 999 is not supported"),
    "no opset": (nameless, "names no operator set"),
    "new ir": (lambda: relu(ir=99), "IR version 99 is not supported"),
    "no outputs": (lambda: model([node("Relu", "x", "y")], [X], []), "no outputs"),
    "cycle": (cyclic, "has a cycle through node"),
    "undefined input": (
        lambda: model([node("Add", "x q", "y")], [X], [Y]),
        "node 'Add' reads 'q', which nothing produces",
    ),
    "undefined output": (
        lambda: model([node("Relu", "x", "z")], [X], [Y]),
        "graph output 'y' has no producer",
    ),
    "duplicate output": (
        lambda: model([node("Relu", "x", "y"), node("Abs", "x", "y")], [X], [Y]),
        "value 'y' is written by two nodes",
    ),
    "duplicate input": (
        lambda: model([node("Relu", "x", "y")], [X, X], [Y]),
        "graph input 'x' is listed twice",
    ),
    "duplicate initializer": (
        lambda: model(
            [node("Add", "x w", "y")],
            [X],
            [Y],
            [tensor("w", np.full(2, i, np.float32)) for i in range(2)],
        ),
        "initializer 'w' is listed twice",
    ),
    "too few inputs beside an unknown operator": (
        lambda: model(
            [node("Unheard", "x", "z"), node("Reshape", "z", "y")],
            [X],
            [Y],
        ),
        "node 'Reshape' has too few inputs",
    ),
    "a weight beyond all memory": (
        lambda: model(
            [node("Add", "x w", "y")],
            [X],
            [Y],
            [TensorProto(name="w", data_type=1, dims=[0, 1 << 40, 1 << 40], raw_data=b"")],
        ),
        "initializer 'w' has the impossible size",
    ),
    "overwritten input": (
        lambda: model([node("Relu", "x", "x")], [X], [X]),
        "'x' is both written by a node and an input",
    ),
    "wrong dtype": (
        lambda: model([node("Add", "x i", "y")], [X, value("i", [2], I64)], [Y]),
        "the model is invalid: ",
    ),
    "wrong shape": (
        lambda: model([node("MatMul", "x b", "y")], [value("x", [2, 3]), value("b", [4, 5])], [Y]),
        "'x' is f32[2,3] and 'b' is f32[4,5]",
    ),
    "shapes that contradict each other": (
        lambda: model(
            [node("Relu", "x", "h"), node("Add", "h b", "y")],
            [value("x", [2, 3]), value("b", [2, 4])],
            [Y],
        ),
        "'h' is f32[2,3] and 'b' is f32[2,4]",
    ),
    "unknown weight type": (unknown_type, "has the unknown type 99"),
    "data of another size": (misfit, "holds 2048 bytes, but its shape [9, 64] needs 2304"),
    "an attribute of another size": (
        misfit_attribute,
        "holds 20 bytes, but its shape [2] needs 8",
    ),
    "external missing": (lambda: outside(location="w.bin"), "put 'w.bin' beside m.onnx"),
    "external above": (lambda: outside(location="../w.bin"), "outside the model's folder"),
    "external absolute": (lambda: outside(location="/etc/passwd"), "outside the model's folder"),
    "external unnamed": (lambda: outside(location=""), "names no file"),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_model_is_refused_with_its_reason(name: str, tmp_path: Path) -> None:
    make, reason = INVALID[name]
    with pytest.raises(ModelError) as caught:
        read(make(), tmp_path)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"# a text, not a model\n" * 9, "is not an ONNX model"),
        (b"\x08\x08", "it has no graph"),
        (
            ModelProto(ir_version=0, graph=GraphProto(name="g")).SerializeToString(),
            "it has no IR version",
        ),
        (b"PK\x03\x04" + bytes(64), "is a zip archive"),
    ],
)
def test_file_that_is_no_model(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=reason):
        load(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_truncated_model(share: float, tmp_path: Path) -> None:
    content = mlp().SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ModelError):
        load(path)


def test_corrupt_bytes_never_escape_as_another_error(tmp_path: Path) -> None:
    content = mlp(width=8).SerializeToString()
    rng = np.random.default_rng(0)
    for _ in range(200):
        broken = bytearray(content)
        broken[rng.integers(len(broken))] = rng.integers(256)
        (tmp_path / "m.onnx").write_bytes(broken)
        try:
            load(tmp_path / "m.onnx")
        except ModelError:
            continue


def test_name_that_is_no_text(tmp_path: Path) -> None:
    content = relu().SerializeToString().replace(b"Relu", b"Re\xff\xfe")
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(ModelError, match="field 'op_type' is not UTF-8"):
        load(tmp_path / "m.onnx")


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        load(tmp_path / "none.onnx")
    with pytest.raises(ModelError, match="is a folder: give an"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"offset": 2048}, "needs bytes 2048 to"),
        ({"offset": 2049}, "begins at byte 2049 of w.bin, which has only 2048"),
        ({"offset": -4}, "begins at byte -4"),
        ({"offset": 0, "length": 9999}, "which has only 2048"),
        ({"offset": 4, "length": 1024}, "holds 1024 bytes"),
    ],
)
def test_external_data_out_of_bounds(entries: dict[str, int], reason: str, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(2048))
    if entries.get("offset") == 2048:
        entries = {**entries, "length": 2048}
    with pytest.raises(ModelError, match=reason):
        read(outside(location="w.bin", **entries), tmp_path)


def test_external_link_out_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(2048))
    (folder / "w.bin").symlink_to(tmp_path / "secret")
    with pytest.raises(ModelError, match="a link out of the model's folder"):
        read(outside(location="w.bin"), folder)


def test_linked_model_finds_data_beside_its_target(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    (blobs / "w.bin").write_bytes(bytes(2048))
    save(outside(location="w.bin"), blobs)
    for name in ("m.onnx", "w.bin"):
        (snapshot / name).symlink_to(blobs / name)
    assert load(snapshot / "m.onnx").graph.weights["w0"].nbytes == 2048


def test_tolerated_by_the_runtime_although_the_checker_objects(tmp_path: Path) -> None:
    unsorted = model([node("Relu", "a", "y"), node("Abs", "x", "a")], [X], [Y])
    unsorted.graph.name = ""
    assert [r.op for r in read(unsorted, tmp_path).graph.regions()] == ["Abs", "Relu"]


def test_unknown_operators_and_domains_stay(tmp_path: Path) -> None:
    proto = model([node("Nonsense", "x", "a"), node("Thing", "a", "y", domain="my.own")], [X], [Y])
    loaded = read(proto, tmp_path)
    assert [r.op for r in loaded.graph.regions()] == ["Nonsense", "my.own::Thing"]


def test_string_weight_of_wrong_count(tmp_path: Path) -> None:
    names = TensorProto(name="s", data_type=TensorProto.STRING, dims=[3], string_data=[b"a"])
    proto = model(
        [node("Equal", "x s", "y")], [value("x", [3], TensorProto.STRING)],
        [value("y", [3], TensorProto.BOOL)], [names], opset=19,
    )  # fmt: skip
    with pytest.raises(ModelError, match="holds 1 values"):
        read(proto, tmp_path)


def test_unused_weight_is_no_error(tmp_path: Path) -> None:
    proto = relu(tensors=[tensor("unused", [1.0])])
    assert "unused" in read(proto, tmp_path).graph.weights
