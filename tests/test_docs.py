"""What the documentation shows is run: every Python and C++ block, every command line."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from tiny import ROOT, product

from tracea_graph import Options, optimize
from tracea_graph.cli.arguments import optimize_parser, options_of, tool_parser
from tracea_graph.cli.settings import with_config
from tracea_graph.cli.tune import whole_command
from tracea_graph.options import table
from tracea_graph.target import BACKENDS, tile_words
from tracea_graph.tuning.hints import hints_from

PAGES = {
    page: (ROOT / page).read_text(encoding="utf-8")
    for page in ("README.md", "kernels/README.md", "kernels/cpu/README.md")
}
README = PAGES["README.md"]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
X = np.random.default_rng(2).standard_normal((3, 32), np.float32)


def blocks(language: str) -> list[str]:
    return [
        text for page in PAGES.values() for word, text in BLOCK.findall(page) if word == language
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``model.onnx`` and its result, as the examples call them."""
    folder = tmp_path_factory.mktemp("examples")
    model = onnx.load(product(folder / "model.onnx"))
    model.graph.node[0].name = "/encoder/layer.0/MatMul"
    onnx.save(model, folder / "model.onnx")
    optimize(folder / "model.onnx", Options(keep="all", verify=False))
    return folder


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    kinds = {word for page in PAGES.values() for word, _ in BLOCK.findall(page)}
    assert kinds == {"python", "cpp", "csharp", "yaml"}


@pytest.mark.compiler
@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run(code: str, folder: Path) -> None:
    code = code.replace('tg.optimize("model.onnx")', 'tg.optimize("model.onnx", OPTIONS)')
    setup = "import tracea_graph\nOPTIONS = tracea_graph.Options(keep='all', verify=False)\n"
    answer = "\nimport numpy\nprint(session.run(None, {'x': numpy.ones((3, 32), 'f4')})[0].shape)"
    done = subprocess.run(
        [sys.executable, "-c", setup + code + answer],
        cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("(3, 48)\n")


@pytest.mark.compiler
def test_the_cpp_block_runs_on_the_wheels_library(folder: Path, tmp_path: Path) -> None:
    home = Path(onnxruntime.__file__).parent / "capi"
    (library,) = home.glob("libonnxruntime.so.*")
    (code,) = blocks("cpp")
    include, _, body = code.partition("\n\n")
    numbers = ", ".join(repr(float(v)) + "f" for v in X.ravel())
    (tmp_path / "main.cpp").write_text(
        f"{include}\nint main() {{\n{body}\n"
        f"for (float y : session.run({{{numbers}}}, {{3, 32}}, 3 * 48))\n"
        '  std::printf("%.9g\\n", y);\n}\n'
    )
    shim = ROOT / "tests" / "deploy"
    (tmp_path / "libonnxruntime.so.1").symlink_to(library)
    subprocess.run(
        ["g++", "-std=c++17", f"-I{shim}", "main.cpp", "-o", "main", str(library),
         f"-Wl,-rpath,{tmp_path}:{home}"],
        cwd=tmp_path, check=True,
    )  # fmt: skip
    done = subprocess.run([tmp_path / "main"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = np.array(done.stdout.split(), np.float32).reshape(3, 48)
    wanted = onnxruntime.InferenceSession(folder / "model.onnx").run(None, {"x": X})[0]
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def command_lines() -> list[str]:
    lines = re.findall(r"^    (tracea(?:-optimize)? [^#\n]+?) *(?:#.*)?$", README, re.M)
    return [re.sub(r"\[[^]]*\]", "", line) for line in lines]


@pytest.mark.parametrize("line", command_lines())
def test_command_lines_are_understood(line: str) -> None:
    program, *args = shlex.split(line)
    parser = tool_parser() if program == "tracea" else optimize_parser()
    assert parser.parse_args(whole_command(args))


def test_the_table_of_options_is_that_of_their_records() -> None:
    assert table() in README, "write what tracea_graph.options.table() gives into the README"
    caps = r"\|".join(level for backend in BACKENDS for level in backend.caps)
    assert f"`TRACEA_ISA={caps}`" in README


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_blocks_are_settings(text: str, tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    args = optimize_parser().parse_args(with_config(["model.onnx", "--config", str(path)]))
    options = options_of(args)
    assert options.threads == (1, 2) and len(hints_from(options.patterns, tile_words())) == 2


def test_the_readme_shows_the_commands_it_names() -> None:
    shown = {shlex.split(line)[1] for line in command_lines() if line.startswith("tracea ")}
    assert shown >= {"explain", "inspect", "bench", "verify", "strip", "doctor"}
    assert any("--retune" in line for line in command_lines())
