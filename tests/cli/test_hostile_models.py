"""A model is data: nothing of it reaches a compiler, a shell or a path."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.cli.support import UNTIMED, cache_with_runtime, content, refused
from tests.tiny import ROOT, product
from tracea_graph import Options, optimize
from tracea_graph.api import stage_results
from tracea_graph.cli import main, optimize_main
from tracea_graph.onnx_io.protobuf_wire import encode_tag
from tracea_graph.toolchain import compilers

MARK = "QzX"
"""Part of every hostile name, so that it can be searched for."""
HOSTILE = (
    f"../../{MARK}", f"/tmp/{MARK}", f"{MARK}\n#include </etc/passwd>\n", f"*/ {MARK} /*",
    f'"{MARK}"; system("touch pwned"); //', f"$(touch {MARK})", f"`touch {MARK}`", f"{MARK}\x00x",
    f"'{MARK}' || touch pwned", f"{MARK};rm -rf ~", f"-o{MARK}", f"{MARK}%s%n%n", f"\x1b[2J{MARK}",
    f"{MARK}\u202e\ufeff", f"??/{MARK}\\\n", f"{{{{ {MARK} }}}}", f"//% include '{MARK}'",
)  # fmt: skip


def named(path: Path, names: Sequence[str], doc: str = "") -> Path:
    """A product whose every name is hostile; ``names`` are used in turn and made unique."""
    model = onnx.load(product(path))
    graph, count = model.graph, 0

    def name(_: str) -> str:
        nonlocal count
        count += 1
        return f"{names[count % len(names)]}{count}"

    new: dict[str, str] = {"": ""}
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = new.setdefault(value.name, name(value.name))
    for node in graph.node:
        node.name, node.doc_string = name(node.name), doc
        for field in (node.input, node.output):
            field[:] = [new.setdefault(v, name(v)) for v in field]
    for end in (*graph.input, *graph.output):
        end.type.tensor_type.shape.dim[0].dim_param = names[0]
    graph.name, graph.doc_string, model.producer_name = names[0], doc, names[-1]
    model.metadata_props.add(key=names[0], value=doc)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Every command line of the build."""
    seen = list[tuple[str, ...]]()
    run = compilers.run_command

    def noted(command: Sequence[str], folder: Path, seconds: float, *env: Any) -> str:
        modes = [stat.S_IMODE(place.stat().st_mode) for place in (folder, folder.parent)]
        assert 0o700 in modes or "--version" in command
        seen.append(tuple(command))
        return run(command, folder, seconds, *env)

    monkeypatch.setattr(compilers, "run_command", noted)
    return seen


def texts(model: Path) -> Iterator[str]:
    made = stage_results(model, "emit", Options(keep="all"))
    yield from (source.text for source in made.sources)


@pytest.mark.compiler
def test_no_name_reaches_the_compiler(
    home: Path, commands: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [name for name in HOSTILE if "\x00" not in name]
    model = named(home / "m.onnx", names, doc="*/ system(); /*" + MARK)
    monkeypatch.setenv("CXX", "g++ -DFRESH=1")  # nothing of it is cached
    args = ("--target", "cpu:scalar", "--keep-sources", "sources")
    assert optimize_main([model.name, *UNTIMED, "-q", "--cache", "cache", *args]) == 0
    assert len(commands) > 5
    for command in commands:
        assert MARK not in " ".join(command) and "m.onnx" not in " ".join(command)
        assert all(re.fullmatch(r"[\w+=./,:-]+", word) for word in command)
    sources = [p for p in Path("sources").rglob("*") if p.is_file()]
    assert sources and all(MARK not in p.read_text() for p in sources)
    assert MARK.encode() not in Path("m.tracea.so").read_bytes()
    assert all(MARK not in str(p) for p in home.rglob("*"))
    assert not (home / "pwned").exists()
    onnx.checker.check_model("m.tracea.onnx")


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(names=st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=4), doc=st.text())
def test_sources_are_those_of_an_honest_model(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], doc: str
) -> None:
    """Whatever the names: the very same sources, byte for byte."""
    folder = tmp_path_factory.mktemp("fuzz")
    honest = sorted(texts(product(folder / "honest.onnx")))
    try:
        model = named(folder / "m.onnx", names, doc)
    except UnicodeEncodeError:  # a lone surrogate is no text
        return
    assert sorted(texts(model)) == honest
    assert {p.name for p in folder.iterdir()} == {"honest.onnx", "m.onnx"}


@pytest.mark.compiler
def test_a_name_of_ten_megabytes(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = onnx.load(home / "good.onnx")
    long = MARK + "x" * 10_000_000
    model.graph.node[0].name = model.graph.node[0].output[0] = model.graph.node[1].input[0] = long
    (home / "m.onnx").write_bytes(model.SerializeToString())
    assert optimize_main(["m.onnx", *UNTIMED, "-q"]) == 0
    assert main(["explain", "m.onnx"]) == 0
    assert all(len(p.name) < 40 for p in home.rglob("*"))


def test_what_is_printed_obeys_no_name(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named(home / "m.onnx", [name for name in HOSTILE if "\x00" not in name])
    for command in (["inspect", "m.onnx"], ["explain", "m.onnx"]):
        assert main(command) == 0
        out, err = capsys.readouterr()
        assert "\x1b" not in out + err and "\u202e" not in out + err


@pytest.mark.parametrize("depth", [20, 40, 5000])
def test_bodies_nested_in_bodies(
    home: Path, capsys: pytest.CaptureFixture[str], depth: int
) -> None:
    """A body within a body, as deep as protobuf reads and deeper: written by hand."""
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    plain = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "b", [], [y])
    node = helper.make_node("If", ["c"], ["y"], else_branch=plain)
    around = helper.make_graph([], "b", [], [y]).SerializeToString()
    attribute = onnx.AttributeProto(name="then_branch", type=onnx.AttributeProto.GRAPH)
    body = plain.SerializeToString()
    for _ in range(depth):
        branch = attribute.SerializeToString() + field(6, body)
        body = around + field(1, node.SerializeToString() + field(5, branch))
    inputs = (
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1]),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
    )
    graph = body + b"".join(field(11, value.SerializeToString()) for value in inputs)
    head = onnx.ModelProto(ir_version=8, opset_import=[helper.make_opsetid("", 17)])
    (home / "bad.onnx").write_bytes(head.SerializeToString() + field(7, graph))
    if depth == 20:
        assert optimize_main(["bad.onnx", *UNTIMED, "-q"]) == 0
    else:
        assert "not an ONNX model" in refused(capsys, "bad.onnx", *UNTIMED)


def field(number: int, payload: bytes) -> bytes:
    """A field of protobuf's wire format that holds bytes."""
    return encode_tag(number, len(payload)) + payload


def test_claimed_sizes_are_not_believed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A weight of 2^40 elements that holds four bytes."""
    model = onnx.load(product(home / "bad.onnx"))
    model.graph.initializer[0].dims[:] = [1 << 20, 1 << 20]
    (home / "bad.onnx").write_bytes(model.SerializeToString())
    refused(capsys, "bad.onnx", *UNTIMED)


def test_a_shape_of_a_terabyte_is_not_made(home: Path) -> None:
    """A constant that only a folder of constants would pay for."""
    size = numpy_helper.from_array(np.array([1 << 38], np.int64), "size")
    node = helper.make_node("ConstantOfShape", ["size"], ["y"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1 << 38])
    graph = helper.make_graph([node], "g", [], [y], [size])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), home / "m.onnx")
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30)); "
        "from tracea_graph.cli import optimize_main; sys.exit(optimize_main(sys.argv[1:]))"
    )
    command: list[Any] = [sys.executable, "-c", code, home / "m.onnx", *UNTIMED, "-q"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode in (0, 2) and "Traceback" not in done.stderr


@pytest.mark.compiler
def test_a_link_in_the_way_of_a_result_is_replaced(home: Path) -> None:
    """Where a result goes a link is exchanged, and what it led to stays."""
    (home / "precious").mkdir()
    target = home / "precious" / "file"
    target.write_text("precious")
    (home / "good.tracea.onnx").symlink_to(target)
    before = content(home / "precious")
    assert optimize_main(["good.onnx", *UNTIMED, "-q"]) == 0
    assert content(home / "precious") == before
    assert not (home / "good.tracea.onnx").is_symlink()


def test_no_module_reads_what_could_run_code() -> None:
    forbidden = re.compile(
        r"\bimport (pickle|marshal|shelve|dill|cloudpickle|joblib)\b|allow_pickle=True"
        r"|shell=True|\bos\.(system|popen)\(|(?<![\w.])(eval|exec)\(|yaml\.load\("
    )
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in ("tracea_graph", "passes", "kernels", "models")
        for path in (ROOT / folder).rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if forbidden.search(line)
    ]
    assert found == []


def test_arrays_are_never_unpickled(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(home / "data.npz", x=np.array([{"a": 1}], object))
    assert "data.npz" in refused(capsys, "good.onnx", *UNTIMED[:2], "--data", "data.npz")


@pytest.mark.compiler
def test_the_result_is_read_only_by_choice(home: Path) -> None:
    """What is cached is the owner's alone."""
    cache = cache_with_runtime(home / "cache")
    optimize("good.onnx", Options(keep="all", verify=False, target="cpu:scalar", cache=cache))
    for path in (home / "cache").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
