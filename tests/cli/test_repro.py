"""``tracea repro``: a pack repeats a run, and has no number of the user's unless asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.tiny import product
from tracea_graph import api
from tracea_graph.cli.main import main, optimize_main
from tracea_graph.commands.repro import replay_arguments
from tracea_graph.errors import VerifyError
from tracea_graph.onnx_io.weightless_models import regrow_weights, write_skeleton

ROOT = Path(__file__).resolve().parents[2]
RUN = ("--keep", "all", "--no-verify", "--target", "cpu:scalar")


def secret(folder: Path) -> Path:
    """A model whose weights and texts are somebody's."""
    path = product(folder / "model.onnx")
    model = onnx.load(path)
    model.doc_string = "ours"
    model.graph.node[0].doc_string = "ours"
    weight = next(t for t in model.graph.initializer if len(t.dims) == 2)
    numbers = 3 + 0.5 * np.random.default_rng(7).standard_normal(tuple(weight.dims))
    numbers[::2] = 0
    weight.CopyFrom(numpy_helper.from_array(numbers.astype(np.float32), weight.name))
    onnx.save(model, path)
    return path


def test_weights_are_drawn_with_their_mean_and_spread(tmp_path: Path) -> None:
    source = secret(tmp_path)
    facts = write_skeleton(source, tmp_path / "skeleton.onnx")
    assert (tmp_path / "skeleton.onnx").stat().st_size < 1000
    assert b"ours" not in (tmp_path / "skeleton.onnx").read_bytes()
    regrow_weights(tmp_path / "skeleton.onnx", facts, tmp_path / "a.onnx")
    regrow_weights(tmp_path / "skeleton.onnx", facts, tmp_path / "b.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    before, after = (
        next(numpy_helper.to_array(t) for t in onnx.load(p).graph.initializer if len(t.dims) == 2)
        for p in (source, tmp_path / "a.onnx")
    )
    assert before.shape == after.shape
    assert not np.array_equal(before, after)
    assert abs((after == 0).mean() - 0.5) < 0.1
    assert abs(after.std() - before.std()) < 0.3 * before.std()


def test_files_that_options_name_are_packed_but_for_data(tmp_path: Path) -> None:
    words = ["--config", "a.yaml", "--data=x.npz", "-o", "out.onnx", "--threads", "2", "-v"]
    assert replay_arguments(words, weights=False) == (
        ["--config", "pack:config.yaml", "--threads", "2", "-v"],
        {"config.yaml": Path("a.yaml")},
    )
    kept, files = replay_arguments(words, weights=True)
    assert kept[2:4] == ["--data", "pack:data.npz"]
    assert files["data.npz"] == Path("x.npz")


@pytest.mark.compiler
def test_a_pack_repeats_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = secret(tmp_path)
    assert main(["repro", str(source), "--json", "--", *RUN]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["exit_code"] == 0
    with zipfile.ZipFile(facts["pack"]) as pack:
        names = pack.namelist()
        pack.extractall(tmp_path / "pack")
    assert {"model.onnx", "repro.json", "replay.py", "lock.json", "report.json"} <= {*names}
    assert any(name.startswith("sources/") for name in names)
    about = json.loads((tmp_path / "pack" / "repro.json").read_text())
    assert about["options"] == list(RUN)
    assert about["versions"]["tracea"]
    replayed = subprocess.run(
        [sys.executable, tmp_path / "pack" / "replay.py", tmp_path / "again"],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "exit code 0, expected 0: reproduced" in replayed.stdout
    assert (tmp_path / "again" / "result.so").exists()


def test_a_wrong_result_is_packed_where_it_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = secret(tmp_path)

    def wrong(models: object, *args: object, **named: object) -> object:
        yield api.OptimizeOutcome(source, None, VerifyError("y is off by 1"))

    monkeypatch.setattr(api, "optimize_many", wrong)
    monkeypatch.setenv("TRACEA_CACHE", str(tmp_path / "cache"))
    assert optimize_main([str(source), "--threads", "1"]) == VerifyError.exit_code
    said = capsys.readouterr().err
    pack = tmp_path / "cache" / "repro" / "model.repro.zip"
    assert f"to report this: {pack}, without weights" in said
    with zipfile.ZipFile(pack) as held:
        about = json.loads(held.read("repro.json"))
    assert about["outcome"] == {
        "exit_code": 3, "error": "VerifyError: y is off by 1", "improved": None, "crashed": False
    }  # fmt: skip
    assert about["options"] == ["--threads", "1"]


CRASHING = """
import re
from tracea_graph.kernels.cpu import emitter

render = emitter.render

def crashing(template, **parameters):
    text = render(template, **parameters)
    if template.startswith("gemm.cpp"):
        text = re.sub(r"TRACEA_API [^\\n;]*{\\n", lambda m: m[0] + "__builtin_trap();", text)
    return text

emitter.render = crashing
"""


@pytest.mark.slow
@pytest.mark.compiler
def test_a_crash_of_a_worker_is_packed_and_its_replay_crashes(tmp_path: Path) -> None:
    """Every process of this environment compiles products that end it."""
    (tmp_path / "sitecustomize.py").write_text(CRASHING)
    source = secret(tmp_path)
    environment = {
        **os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "TRACEA_CACHE": str(tmp_path / "cache")
    }  # fmt: skip

    def run(*command: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *map(str, command)], capture_output=True, text=True, env=environment,
            check=False, timeout=300,
        )  # fmt: skip

    optimized = run("-m", "tracea_graph", "optimize", source, "--target", "cpu:scalar")
    assert optimized.returncode == 0, optimized.stderr
    assert "kept original: every rewrite crashed" in optimized.stdout
    assert "dropped: it crashed" in optimized.stdout
    pack = tmp_path / "cache" / "repro" / "model.repro.zip"
    assert f"to report this: {pack}, without weights" in optimized.stderr
    with zipfile.ZipFile(pack) as held:
        held.extractall(tmp_path / "pack")
    about = json.loads((tmp_path / "pack" / "repro.json").read_text())
    assert about["outcome"]["crashed"] and "the worker died (SIG" in about["outcome"]["error"]
    replayed = run(tmp_path / "pack" / "replay.py", tmp_path / "again")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "exit code 0, a worker crashed, expected 0, a worker crashed: reproduced" in (
        replayed.stdout
    )
    (tmp_path / "sitecustomize.py").unlink()
    mended = run(tmp_path / "pack" / "replay.py", tmp_path / "mended")
    assert mended.returncode == 1 and "not reproduced" in mended.stdout
