"""``session.intra_op.allow_spinning=0`` is obeyed, in every version of ONNX Runtime."""

from __future__ import annotations

import subprocess
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest

from tests.runtime.compiled_program import compiled_program

pytestmark = pytest.mark.compiler
SOURCE = Path(__file__).with_name("session_config.cpp")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled_program(SOURCE, tmp_path_factory.mktemp("config"))


@pytest.mark.parametrize("version", ["1.17.3", "1.23.0", "1.24.1", "1.32.0"])
@pytest.mark.parametrize(("value", "spins"), [("-", 1), ("0", 0), ("1", 1), ("9" * 40, 1)])
def test_may_spin(program: Path, version: str, value: str, spins: int) -> None:
    done = subprocess.run([program, version, value], check=True, capture_output=True, text=True)
    assert done.stdout.split() == [str(spins), "0"]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, folder = SOURCE.with_name("spinning_op.cpp"), tmp_path_factory.mktemp("config")
    return compiled_program(source, folder, "-shared", "-fPIC")


@pytest.mark.parametrize(("value", "spins"), [(None, 1), ("0", 0), ("1", 1)])
def test_a_session_tells_its_nodes(library: Path, value: str | None, spins: int) -> None:
    make = onnx.helper
    node = make.make_node("MaySpin", [], ["y"], domain="tests.spinning")
    result = make.make_tensor_value_info("y", onnx.TensorProto.INT64, [1])
    graph = make.make_graph([node], "spinning", [], [result])
    opsets = [make.make_opsetid("", 17), make.make_opsetid("tests.spinning", 1)]
    model = make.make_model(graph, opset_imports=opsets, ir_version=8)
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(library))
    if value is not None:
        options.add_session_config_entry("session.intra_op.allow_spinning", value)
    session = ort.InferenceSession(model.SerializeToString(), options)
    assert session.run(None, {})[0].tolist() == [spins]
