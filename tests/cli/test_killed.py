"""SIGKILL at any moment: the folder holds the old result or the new one, both right."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.support import COMMAND, UNTIMED
from tests.tiny import ROOT, answers, error_between, product
from tracea_graph import api
from tracea_graph.check.worker_process import Array, Worker
from tracea_graph.errors import UsageError

pytestmark = pytest.mark.compiler
X = {"x": np.random.default_rng(3).standard_normal((5, 64), np.float32)}
CLOSE = 1e-5
Pair = tuple[Path, Path]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Two models of one name and signature that compute different functions."""
    old, new = (tmp_path_factory.mktemp(word) / "m.onnx" for word in ("old", "new"))
    product(old, 64, 64, copies=1)
    product(new, 64, 64, copies=3)
    return old, new


@pytest.fixture(scope="module")
def earlier(originals: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the earlier result; running it also fills the object cache."""
    folder = tmp_path_factory.mktemp("earlier")
    for model, place in zip(originals, (folder, tmp_path_factory.mktemp("warm")), strict=True):
        run(model, place)
    return folder


@pytest.fixture(scope="module")
def expected(originals: Pair) -> tuple[Array, ...]:
    return tuple(answers(original, X)["y"] for original in originals)


def command(model: Path, folder: Path) -> list[str | Path]:
    return [*COMMAND, model, "-o", folder / "out.onnx", *UNTIMED, "-q"]


def run(model: Path, folder: Path) -> float:
    """The seconds one whole run takes."""
    start = time.monotonic()
    subprocess.run(command(model, folder), cwd=ROOT, check=True)
    return time.monotonic() - start


def killed(model: Path, folder: Path, seconds: float) -> bool:
    """Kill a run and all it started after some time; False if it had ended."""
    process = subprocess.Popen(command(model, folder), cwd=ROOT, start_new_session=True)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def stopped(model: Path, earlier: Path, place: Path, seconds: float) -> Path:
    """The folder of a run over the earlier result that was killed after some time.

    One that ended before shows that runs are quicker by now.
    """
    for attempt in range(20):
        folder = place / str(attempt)
        shutil.copytree(earlier, folder)
        if killed(model, folder, seconds):
            return folder
        seconds *= 0.7
    raise AssertionError("every run ended before it could be killed")


def check(folder: Path, expected: Sequence[Array]) -> int:
    """Which function the result computes, with and without its library; fails if that is unclear.

    A model whose library is the other result's must say so, and runs on its bodies.
    """
    result, found = folder / "out.onnx", set[int]()
    onnx.checker.check_model(result)
    with Worker() as worker:
        for library in (None, result.with_suffix(".so")):
            worker.open("result", result, library)
            given = worker.run("result", X)
            near = [error_between(given, {"y": y}) < CLOSE for y in expected]
            assert sum(near) == 1, "the result computes neither function"
            found.add(near.index(True))
    assert len(found) == 1, "library and bodies disagree"
    try:
        api.session(result)
    except UsageError as error:
        assert "is not the library" in str(error)
    return found.pop()


def sweep(
    model: Path, earlier: Path, expected: Sequence[Array], tmp_path: Path, times: int
) -> None:
    """The first is killed at once, which leaves the old result."""
    shutil.copytree(earlier, tmp_path / "timed")
    whole = run(model, tmp_path / "timed")
    chance = random.Random(times)
    for i in range(times):
        moment = (i + chance.random()) / times if i else 0.0
        folder = stopped(model, earlier, tmp_path / str(i), whole * moment)
        found = check(folder, expected)
        assert i or found == 0
        names = {p.name for p in folder.iterdir() if not p.name.startswith(".")}
        assert names == {"out.onnx", "out.so", "out.json"}
    run(model, folder)  # what a dead run left is in nobody's way
    assert check(folder, expected) == 1


def test_killed_at_any_moment(
    originals: Pair, earlier: Path, expected: Sequence[Array], tmp_path: Path
) -> None:
    sweep(originals[1], earlier, expected, tmp_path, 3)


@pytest.mark.slow
def test_killed_at_many_moments(
    originals: Pair, earlier: Path, expected: Sequence[Array], tmp_path: Path
) -> None:
    sweep(originals[1], earlier, expected, tmp_path, 80)


KILL = """
import os, signal, sys
from pathlib import Path
from tracea_graph import Options, optimize
import tracea_graph.pipeline.output_files as output
at, moved, replace = int(sys.argv[3]), [], os.replace

def dying(source, target):
    final = Path(target).parent == Path(sys.argv[2]).parent
    if final and len(moved) == at:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)
    moved.extend([target] * final)

output.os.replace = dying
optimize(sys.argv[1], Options(Path(sys.argv[2]), keep="all", verify=False))
"""


@pytest.mark.parametrize("moved", range(4))
def test_killed_between_two_files(
    moved: int, originals: Pair, earlier: Path, expected: Sequence[Array], tmp_path: Path
) -> None:
    """After ``moved`` of the three files took their places: library, report, model."""
    folder = tmp_path / "out"
    shutil.copytree(earlier, folder)
    done = subprocess.run(
        [COMMAND[0], "-c", KILL, originals[1], folder / "out.onnx", str(moved)],
        cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == (-signal.SIGKILL if moved < 3 else 0)
    assert check(folder, expected) == (0 if moved < 3 else 1)
