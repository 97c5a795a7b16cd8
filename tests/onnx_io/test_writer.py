"""Export: data files, functions, metadata, failures that leave nothing behind."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx
import pytest

from tests.onnx_io.samples import (
    equal,
    feeds,
    mlp,
    model,
    node,
    read,
    run,
    save,
    skeleton,
    tensor,
    value,
    verbatim,
)  # fmt: skip
from tracea_graph.errors import GraphError, ModelError, UsageError
from tracea_graph.ir import Blob, DType, Node, Weight
from tracea_graph.onnx_io import LocalFunction, external_data, load, model_writer, write
from tracea_graph.onnx_io.node_conversion import to_proto
from tracea_graph.onnx_io.tensor_data import in_memory_weight

WIDE = 300


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few kilobytes count as too large to stay inline."""
    monkeypatch.setattr(model_writer, "INLINE_LIMIT", 4096)


def places(path: Path) -> dict[str, tuple[str, int, int]]:
    out = {}
    for held in skeleton(path).graph.initializer:
        entry = {e.key: e.value for e in held.external_data}
        if entry:
            out[held.name] = (entry["location"], int(entry["offset"]), int(entry["length"]))
    return out


@pytest.mark.usefixtures("small_limit")
def test_large_weights_go_to_an_aligned_file_named_by_its_content(tmp_path: Path) -> None:
    loaded = read(mlp(width=WIDE), tmp_path)
    written = verbatim(loaded, tmp_path / "out.onnx")
    assert written.data is not None
    digest = hashlib.sha256(written.data.read_bytes()).hexdigest()
    assert written.data.name == f"out.{digest[:10]}.data"
    found = places(written.model)
    assert [offset for _, offset, _ in found.values()] == [0, 12288]
    assert {length for _, _, length in found.values()} == {8 * WIDE * 4, WIDE * 4 * 4}
    assert written.bytes == written.model.stat().st_size + written.data.stat().st_size
    given = feeds(loaded.path, {"batch": 3})
    assert equal(run(written.model, given), run(loaded.path, given))


@pytest.mark.usefixtures("small_limit")
def test_external_in_and_out_and_back_inline(tmp_path: Path) -> None:
    first, second, third = (tmp_path / n for n in ("a.onnx", "b.onnx", "c.onnx"))
    loaded = read(mlp(width=WIDE), tmp_path)
    verbatim(loaded, first)
    again = load(first)
    assert isinstance(again.graph.weights["w0"].array(), np.memmap)
    assert again.size == first.stat().st_size + WIDE * 12 * 4
    assert verbatim(again, second).data == tmp_path / places(second)["w0"][0]
    inline = verbatim(load(second), third, single_file=True)
    assert inline.data is None and not places(third)
    given = feeds(loaded.path, {"batch": 3})
    assert equal(run(third, given), run(loaded.path, given))


@pytest.mark.usefixtures("small_limit")
def test_export_is_deterministic_and_leaves_no_other_file(tmp_path: Path) -> None:
    loaded = read(mlp(width=WIDE), tmp_path)
    contents = []
    for _ in range(2):
        written = verbatim(loaded, tmp_path / "out.onnx")
        contents.append(written.model.read_bytes())
    assert contents[0] == contents[1]
    assert written.data is not None
    assert {p.name for p in tmp_path.iterdir()} == {"m.onnx", "out.onnx", written.data.name}


@pytest.mark.usefixtures("small_limit")
def test_equal_weights_are_stored_once(tmp_path: Path) -> None:
    w = np.random.default_rng(0).standard_normal((40, 40))
    proto = model(
        [node("MatMul", "x v", "a"), node("MatMul", "a w", "b"), node("MatMul", "b u", "y")],
        [value("x", [2, 40])], [value("y", [2, 40])],
        [tensor("v", w), tensor("w", w), tensor("u", w + 1)],
    )  # fmt: skip
    loaded = read(proto, tmp_path)
    written = verbatim(loaded, tmp_path / "out.onnx")
    found = places(written.model)
    assert found["v"] == found["w"] != found["u"]
    assert written.data is not None and written.data.stat().st_size == 8192 + 6400
    given = feeds(loaded.path, {})
    assert equal(run(written.model, given), run(loaded.path, given))


def test_unread_weights_are_not_written(tmp_path: Path) -> None:
    loaded = read(mlp(), tmp_path)
    nodes = [Node("Relu", ("x",), ("y",))]
    path = write(loaded, nodes, loaded.graph.weights, tmp_path / "o.onnx").model
    assert not skeleton(path).graph.initializer


def test_every_kind_of_attribute_comes_back(tmp_path: Path) -> None:
    attrs: dict[str, Any] = {
        "i": 3, "f": 0.5, "s": "text", "b": b"\xff\x00", "ints": (1, 2), "floats": (0.5, 1.0),
        "strings": ("a", "b"), "none": (), "t": np.arange(6, dtype=np.int8).reshape(2, 3),
        "n": np.int64(7),
    }  # fmt: skip
    loaded = read(mlp(), tmp_path)
    nodes = [Node("Op", ("x",), ("y",), attrs, domain="d")]
    path = write(loaded, nodes, {}, tmp_path / "o.onnx", domain="d").model
    found = {
        a.name: onnx.helper.get_attribute_value(a) for a in skeleton(path).graph.node[0].attribute
    }
    assert np.array_equal(onnx.numpy_helper.to_array(found.pop("t")), attrs.pop("t"))
    assert found == {**attrs, "s": b"text", "strings": [b"a", b"b"], "ints": [1, 2],
                     "floats": [0.5, 1.0], "none": []}  # fmt: skip


def test_numbers_beyond_64_bits_are_refused() -> None:
    with pytest.raises(ModelError, match="'shape' is beyond 64 bits"):
        to_proto(Node("Reshape", ("x",), ("y",), {"shape": (2, 2**64)}), ())


def test_graph_attributes_are_blobs_and_come_back(tmp_path: Path) -> None:
    body = onnx.helper.make_graph(
        [node("Identity", "go", "on"), node("Add", "h x", "t")], "b",
        [value("i", [], 7), value("go", [], 9), value("h", [2])],
        [value("on", [], 9), value("t", [2])],
    )  # fmt: skip
    proto = model(
        [node("Identity", "c", "d"), node("Loop", "_ d x", "y", body=body)],
        [value("x", [2]), value("c", [], 9)], [value("y", [2])],
    )  # fmt: skip
    loaded = read(proto, tmp_path)
    rewired = loaded.graph.regions()[0].node
    assert rewired.source is None and isinstance(rewired.attrs["body"], Blob)
    after = skeleton(verbatim(loaded, tmp_path / "o.onnx").model)
    assert after.graph.node[0].attribute == proto.graph.node[1].attribute


def test_functions_and_metadata(tmp_path: Path) -> None:
    loaded = read(mlp(), tmp_path)
    k = np.arange(32, dtype=np.float32).reshape(8, 4)
    weights = {"k": in_memory_weight("k", k)}
    body = LocalFunction(
        "Fused_ab", ("a", "b"), ("c",),
        (Node("MatMul", ("a", "b"), ("m",)), Node("Relu", ("m",), ("c",))),
    )  # fmt: skip
    nodes = [Node("Fused_ab", ("x", "k"), ("y",), {"plan": b"\x01"}, "tracea.1", "fused")]
    out = write(
        loaded, nodes, weights, tmp_path / "o.onnx", functions=[body], domain="tracea.1",
        metadata={"tracea": "1"}, node_metadata={"fused": {"tracea.rule": "gemm"}},
    ).model  # fmt: skip
    after = skeleton(out)
    onnx.checker.check_model(after, full_check=True)
    assert {(i.domain, i.version) for i in after.opset_import} == {("", 17), ("tracea.1", 1)}
    assert list(after.functions[0].attribute) == ["plan"]
    assert after.functions[0].opset_import == after.opset_import
    assert {p.key: p.value for p in after.metadata_props} == {"tracea": "1"}
    assert after.graph.node[0].metadata_props[0].value == "gemm"
    x = np.ones((2, 8), np.float32)
    assert equal(run(out, {"x": x}), [np.maximum(x @ k, 0)])


@pytest.mark.parametrize("typed", [False, True])
def test_outputs_without_shapes_get_those_that_are_known(typed: bool, tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "y"), node("Concat", "x x", "z", axis=0),
             node("ReduceSum", "x", "s", keepdims=0)]  # fmt: skip
    outputs = [value(v, None) for v in "yzs"]
    for output in () if typed else outputs:
        output.ClearField("type")
    loaded = read(model(nodes, [value("x", ["n", 4])], outputs), tmp_path)
    fused = [Node(f"Fused_{v}", ("x",), (v,), {}, "tracea.1") for v in "yzs"]
    out = write(loaded, fused, {}, tmp_path / "o.onnx", domain="tracea.1").model
    types = [v.type.tensor_type for v in skeleton(out).graph.output]
    dims = [[d.dim_param or d.dim_value for d in t.shape.dim] for t in types]
    assert dims == [["n", 4], [0, 4], []] and all(t.HasField("shape") for t in types)
    assert {t.elem_type for t in types} == {onnx.TensorProto.FLOAT}


def test_nodes_are_sorted_and_sources_checked(tmp_path: Path) -> None:
    loaded = read(mlp(), tmp_path)
    nodes = [Node("Relu", ("a",), ("y",)), Node("Abs", ("x",), ("a",))]
    path = write(loaded, nodes, {}, tmp_path / "o.onnx").model
    assert [n.op_type for n in skeleton(path).graph.node] == ["Abs", "Relu"]
    with pytest.raises(GraphError, match="'q' is read but nothing provides it"):
        write(loaded, [Node("Relu", ("q",), ("y",))], {}, tmp_path / "o.onnx")


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize(
    ("code", "advice"), [(errno.ENOSPC, "free some space"), (errno.EACCES, "you may write to")]
)
def test_failure_while_writing_leaves_nothing(
    code: int, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = read(mlp(width=WIDE), tmp_path)
    (tmp_path / "out.onnx").write_bytes(b"old")

    def fail(file: IO[bytes], weights: Iterable[Weight]) -> None:
        file.write(b"half")
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(external_data, "write_data", fail)
    with pytest.raises(UsageError, match=advice):
        verbatim(loaded, tmp_path / "out.onnx")
    assert {p.name for p in tmp_path.iterdir()} == {"m.onnx", "out.onnx"}
    assert (tmp_path / "out.onnx").read_bytes() == b"old"


def test_real_write_errors_are_sentences(tmp_path: Path) -> None:
    loaded = read(mlp(), tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        verbatim(loaded, tmp_path / "no" / "out.onnx")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="Is a directory"):
        verbatim(loaded, tmp_path / "folder")
    with pytest.raises(UsageError, match="is the input itself"):
        verbatim(loaded, loaded.path)


def test_disk_limit_of_the_process(tmp_path: Path) -> None:
    save(mlp(width=4000), tmp_path)
    code = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from tracea_graph.errors import UsageError\n"
        "from tracea_graph.onnx_io import load, write\n"
        "m = load(Path('m.onnx'))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
        "try:\n"
        "    write(m, [r.node for r in m.graph.regions()], m.graph.weights, Path('o.onnx'))\n"
        "except UsageError as error:\n"
        "    sys.exit(str(error).startswith('cannot write o.onnx: File too large') and 7)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=_environment())
    assert done.returncode == 7
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_more_than_two_gigabytes_in_one_file_is_refused_before_writing(tmp_path: Path) -> None:
    loaded = read(mlp(), tmp_path)
    huge = Weight("w1", DType.F32, (1 << 28, 4), lambda: np.zeros(0))
    weights = {**loaded.graph.weights, "w1": huge}
    nodes = [r.node for r in loaded.graph.regions()]
    with pytest.raises(UsageError, match="would exceed 2 GB"):
        write(loaded, nodes, weights, tmp_path / "o.onnx", single_file=True)
    assert not (tmp_path / "o.onnx").exists()


MEMORY = """
import resource, sys
from pathlib import Path
from tracea_graph.onnx_io import load, write
import onnx, onnx_graphsurgeon, onnxruntime
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
start = peak()
m = load(Path(sys.argv[1]))
loaded = peak() - start
for single in (False, True):
    write(m, [r.node for r in m.graph.regions()], m.graph.weights, Path(sys.argv[2]),
          single_file=single)
print(m.size, loaded, peak() - start)
"""


def test_memory_stays_far_below_the_model(tmp_path: Path) -> None:
    side, layers = 2500, 12
    tensors = [tensor(f"w{i}", np.full((side, side), i)) for i in range(layers)]
    nodes = [node("MatMul", f"h{i} w{i}", f"h{i + 1}") for i in range(layers)]
    path = save(
        model(nodes, [value("h0", ["n", side])], [value(f"h{layers}", ["n", side])], tensors),
        tmp_path,
    )
    command = [sys.executable, "-c", MEMORY, str(path), str(tmp_path / "o.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=_environment())
    size, loading, whole = map(int, done.stdout.split())
    assert size > 300_000_000
    assert loading < 0.1 * size, f"loading took {loading / size:.2f} of the model"
    assert whole < 0.2 * size, f"loading and writing took {whole / size:.2f} of the model"


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
