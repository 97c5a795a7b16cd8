"""Models that need a custom-op library of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import tracea_graph as tg
from tests.cli.support import UNTIMED
from tracea_graph.cli import main, optimize_main
from tracea_graph.kernels import runtime
from tracea_graph.toolchain import find_compiler

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("highest_level")]
ROWS = 5
X = np.random.default_rng(3).standard_normal((ROWS, 32), np.float32)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of which one operator is in the library ``own.so``."""
    folder = tmp_path_factory.mktemp("own")
    source = Path(__file__).parent / "deploy" / "twice.cpp"
    flags = ("-std=c++17", "-shared", "-fPIC", f"-I{Path(runtime.__file__).parent}")
    find_compiler().run((*flags, str(source), "-o", "own.so"), folder)
    text = """<ir_version: 8, opset_import: ["": 17, "custom": 1]>
    g (float[rows, 32] x) => (float[rows, 64] z) <float[rows, 32] t> {
        t = custom.Twice(x)  m = MatMul(t, w)  z = Tanh(m)
    }"""
    made = onnx.parser.parse_model(text)
    w = np.random.default_rng(4).standard_normal((32, 64), np.float32)
    made.graph.initializer.append(numpy_helper.from_array(w, "w"))
    onnx.save(made, folder / "m.onnx")
    return folder


def test_its_other_nodes_become_kernels(own: Path, tmp_path: Path) -> None:
    library = own / "own.so"
    options = tg.Options(tmp_path / "r.onnx", keep="all", custom_ops_libraries=(library,))
    report = tg.optimize(own / "m.onnx", options)
    assert report.improved and report.status == "passed" and report.kernels == 1
    assert f"the result needs {library} too" in report.notes
    before, after = (
        tg.session(path, custom_ops_libraries=[library]).run(None, {"x": X})[0]
        for path in (own / "m.onnx", report.output)
    )
    assert np.allclose(before, after, atol=1e-5)


def test_commands_take_it(
    own: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own)
    flag = ("--custom-ops-library", "own.so")
    assert optimize_main(["m.onnx", "-o", "r.onnx", *UNTIMED, *flag]) == 0
    assert main(["verify", "m.onnx", "r.onnx", *flag]) == 0
    assert main(["bench", "m.onnx", "r.onnx", "--pairs", "2", "--baselines", "ort", *flag]) == 0
    assert main(["verify", "m.onnx", "r.onnx"]) == 2
    assert "with --custom-ops-library" in capsys.readouterr().err
    assert main(["verify", "m.onnx", "r.onnx", flag[0], "gone.so"]) == 2
    assert "gone.so does not exist" in capsys.readouterr().err
