"""``tracea verify`` compares any two models; ``tracea strip`` gives plain ONNX back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.graphs import session
from tests.tiny import product, transformer
from tracea_graph import Options, optimize
from tracea_graph.cli import main

pytestmark = pytest.mark.usefixtures("highest_level")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transformer and its result, with and without bodies."""
    folder = tmp_path_factory.mktemp("strip")
    model = transformer(folder)
    optimize(model, Options(output=folder / "result.onnx", keep="all"))
    bare = Options(output=folder / "bare.onnx", keep="all", require_library=True)
    optimize(model, bare)
    return folder


def tool(capsys: pytest.CaptureFixture[str], *args: object, code: int = 0) -> str:
    """What a command prints, on stdout if it succeeds."""
    assert main([str(a) for a in args]) == code
    out, err = capsys.readouterr()
    return out or err


def scaled(source: Path, out: Path, factor: float) -> Path:
    """The model with its largest weight scaled."""
    model = onnx.load(source)
    weight = max(model.graph.initializer, key=lambda t: np.prod(t.dims))
    weight.CopyFrom(
        numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(factor), weight.name)
    )
    onnx.save(model, out)
    return out


def test_a_result_is_compared_with_its_library(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = tool(capsys, "verify", folder / "tiny-bert.onnx", folder / "result.onnx")
    assert "equal within tolerance" in said
    before, after = (onnx.load(folder / name) for name in ("tiny-bert.onnx", "result.onnx"))
    kernels = sum(node.domain.startswith("tracea.") for node in after.graph.node)
    became = f"{len(before.graph.node)} nodes became {len(after.graph.node)}, {kernels} of them"
    assert f"{became} kernels of" in " ".join(said.split())


def test_json_holds_every_figure(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = tool(capsys, "verify", folder / "tiny-bert.onnx", folder / "result.onnx", "--json")
    record = json.loads(said)
    assert record["kernels"] > 0 and record["verification"]["status"] == "passed"
    assert all(o["relative"] < 1e-5 for o in record["verification"]["outputs"])


def test_what_differs_fails_until_it_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = product(tmp_path / "good.onnx")
    other = scaled(good, tmp_path / "other.onnx", 1.001)
    said = tool(capsys, "verify", good, other, code=3)
    assert "not equal: output" in said
    output = onnx.load(good).graph.output[0].name
    assert "equal within tolerance" in tool(
        capsys, "verify", good, other, "--tolerance", f"{output}=0.01"
    )
    assert "equal within tolerance" in tool(capsys, "verify", good, other, "--max-error", 0.01)
    said = tool(capsys, "verify", good, other, "--rtol", 1e-5, code=3)
    assert "not equal" in said and "1.0e-05 of each element plus 0.0e+00 is allowed" in said


def test_a_limit_that_is_asked_for_is_the_limit(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime's own distance excuses what nobody gave a limit for, and nothing else."""
    pair = folder / "tiny-bert.onnx", folder / "result.onnx"
    assert "1.0e-04 is allowed" in tool(capsys, "verify", *pair)
    said = tool(capsys, "verify", *pair, "--max-error", 1e-12, code=3)
    assert "not equal" in said and "1.0e-12 is allowed" in said
    output = onnx.load(pair[0]).graph.output[0].name
    said = tool(capsys, "verify", *pair, "--tolerance", f"{output}=1e-12", code=3)
    assert "1.0e-12 is allowed" in said


def test_an_unknown_output_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = product(tmp_path / "good.onnx")
    said = tool(capsys, "verify", good, good, "--tolerance", "nope=1", code=2)
    assert "has no output 'nope'" in said


def test_stripping_gives_plain_onnx_back(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "plain.onnx"
    tool(capsys, "strip", folder / "result.onnx", "-o", out)
    plain = onnx.load(out)
    onnx.checker.check_model(plain)
    assert {n.domain for n in plain.graph.node} == {""}
    assert not plain.functions and [i.domain for i in plain.opset_import] == [""]
    assert not [p for p in plain.metadata_props if p.key.startswith("tracea.")]
    session(out, optimized=True)
    assert out.stat().st_size < 1.1 * (folder / "tiny-bert.onnx").stat().st_size
    tool(capsys, "verify", folder / "tiny-bert.onnx", out)


def test_what_cannot_be_stripped_says_why(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = folder / "nothing.onnx"
    said = tool(capsys, "strip", folder / "tiny-bert.onnx", "-o", out, code=2)
    assert "it is plain ONNX already" in said
    said = tool(capsys, "strip", folder / "bare.onnx", "-o", out, code=2)
    assert "written without bodies" in said
    assert not out.exists()
