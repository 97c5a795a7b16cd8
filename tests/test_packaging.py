"""The wheel: built with and without the symlinks, it installs one name and runs anywhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ("pyproject.toml", "README.md", "tracea_graph", "kernels", "passes")
README = (ROOT / "README.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
LINKS = ("tracea_graph/kernels", "tracea_graph/passes")


def run(*command: str | Path, cwd: Path) -> str:
    env = {**os.environ, "TRACEA_CACHE": str(cwd.with_name("cache"))}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def copy_of_the_checkout(folder: Path, links: bool) -> Path:
    folder.mkdir()
    for name in SHIPPED:
        if (ROOT / name).is_dir():
            skip = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=skip)
        else:
            shutil.copy(ROOT / name, folder)
    for name in () if links else LINKS:
        (folder / name).unlink()
    return folder


def build(folder: Path) -> Path:
    wheels = folder / "wheels"
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", wheels, folder, cwd=folder)
    return next(wheels.glob("tracea_graph-*.whl"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(copy_of_the_checkout(tmp_path_factory.mktemp("linked") / "src", links=True))


def content(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as file:
        return {name for name in file.namelist() if ".dist-info/" not in name}


def shipped_files() -> set[str]:
    """What a wheel must hold: every file of the packages but documentation."""
    homes = {"tracea_graph": ROOT / "tracea_graph"}
    homes |= {name: ROOT / Path(name).name for name in LINKS}
    return {
        f"{prefix}/{path.relative_to(home).as_posix()}"
        for prefix, home in homes.items()
        for path in home.rglob("*")
        if path.is_file()
        and path.suffix != ".md"
        and "__pycache__" not in path.parts
        and not (
            prefix == "tracea_graph" and path.relative_to(home).parts[0] in ("kernels", "passes")
        )
    }


def test_the_wheel_holds_every_module_and_data_file(wheel: Path) -> None:
    assert content(wheel) == shipped_files()


def test_a_checkout_without_symlinks_builds_the_same(wheel: Path, tmp_path: Path) -> None:
    assert content(build(copy_of_the_checkout(tmp_path / "src", links=False))) == content(wheel)


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site-packages of a fresh environment that got the wheel and nothing else."""
    home = tmp_path_factory.mktemp("fresh") / "venv"
    venv.create(home, with_pip=False)
    pip = (sys.executable, "-m", "pip", "--python", home / "bin/python")
    run(*pip, "install", "-q", "--no-deps", "--no-index", wheel, cwd=home)
    return next((home / "lib").glob("python3*/site-packages"))


@pytest.fixture(scope="module")
def programs(site: Path) -> Path:
    """That environment's bin/; the dependencies come from the one that runs this test."""
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    return site.parents[2] / "bin"


def test_an_installed_wheel_adds_one_name(site: Path) -> None:
    added = {path.name for path in site.iterdir() if path.suffix not in (".dist-info", ".pth")}
    assert added == {"tracea_graph"}


def test_the_installed_commands_run_from_an_empty_folder(
    site: Path, programs: Path, tmp_path: Path
) -> None:
    where = "import tracea_graph, tracea_graph.kernels as k; print(k.__file__)"
    assert Path(run(programs / "python", "-c", where, cwd=tmp_path).strip()).is_relative_to(site)
    assert "inspect" in run(programs / "tracea", "--help", cwd=tmp_path)
    usage = run(programs / "tracea-optimize", "--help", cwd=tmp_path)
    named = set(
        re.findall(
            r"`[^`]*`", REFERENCE.split("<!-- tracea-optimize: begin -->")[1].split("<!--")[0]
        )
    )
    options = {
        option for text in named for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text)
    }
    assert len(options) > 20
    assert {option for option in options if option not in usage} == set()


@pytest.mark.compiler
@pytest.mark.slow
def test_the_quickstart_of_the_readme_works(programs: Path, tmp_path: Path) -> None:
    onnx.save(small_model(), tmp_path / "model.onnx")
    command, code = re.findall(r"^    (tracea-optimize \S+)$", README, re.M), python_block()
    assert command == ["tracea-optimize model.onnx"]
    # Such a small model gains too little to be kept on its speed.
    run(programs / "tracea-optimize", *command[0].split()[1:], "--keep", "all", cwd=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "model.onnx",
        "model.tracea.onnx",
        "model.tracea.so",
        "model.tracea.json",
    }
    code += "import numpy\nx = numpy.ones((3, 64), numpy.float32)\n"
    code += "print(session.run(None, {'x': x})[0].shape)"
    assert run(programs / "python", "-c", code, cwd=tmp_path).strip() == "(3, 96)"


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.parametrize("which", ["lowest", "newest"])
def test_the_declared_dependencies_suffice(wheel: Path, tmp_path: Path, which: str) -> None:
    """A fresh environment with the oldest versions that are declared, or what pip picks today."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    wanted = [d.replace(">=", "==") if which == "lowest" else d for d in declared]
    home = tmp_path / "env"
    venv.create(home, with_pip=True)
    run(home / "bin/python", "-m", "pip", "install", "-q", *wanted, cwd=tmp_path)
    run(home / "bin/python", "-m", "pip", "install", "-q", "--no-deps", wheel, cwd=tmp_path)
    onnx.save(small_model(), tmp_path / "model.onnx")
    run(home / "bin/tracea-optimize", "model.onnx", "--keep", "all", cwd=tmp_path)
    result = json.loads((tmp_path / "model.tracea.json").read_text())
    assert (result["status"], result["kernels"]) == ("passed", 1)
    run(home / "bin/tracea", "inspect", "model.onnx", "--json", cwd=tmp_path)
    run(home / "bin/tracea-optimize", "model.onnx", "--budget", "5", "-o", "t.onnx", cwd=tmp_path)
    run(home / "bin/tracea", "bench", "model.onnx", "--pairs", "9", "--threads", "1", cwd=tmp_path)


def python_block() -> str:
    return README.split("```python\n")[1].split("```")[0]


def small_model() -> onnx.ModelProto:
    rng = np.random.default_rng(1)
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 64] x) => (float[n, 96] y) {
            p = MatMul(x, w)
            s = Add(p, b)
            y = Relu(s)
        }""")
    for name, shape in (("w", (64, 96)), ("b", (96,))):
        values = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return model
