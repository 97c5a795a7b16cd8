"""No compiler, a broken one, an impatient user: the right exit code, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.support import COMMAND, LEGAL, content, refused
from tiny import ROOT, product

from tracea_graph import api
from tracea_graph.build.compilers import COMPILE_SECONDS
from tracea_graph.cli import optimize_main


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("compiler", "said"),
    [("false", "failed with exit code 1"), ("no-such-compiler", "could not be started")],
)
def test_a_compiler_that_does_not_work(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    compiler: str,
    said: str,
) -> None:
    monkeypatch.setenv("CXX", compiler)
    assert said in refused(capsys, "good.onnx", *LEGAL, "--cache", "../empty", code=4)


def test_no_compiler_at_all(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    said = refused(capsys, "good.onnx", *LEGAL, "--cache", "../empty", code=4)
    assert "No C++ compiler was found; install g++" in said


@pytest.mark.compiler
def test_a_compiler_that_fails_is_quoted_when_asked(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = home / "cxx"
    lines = (
        "#!/bin/sh",
        '[ "$1" = --version ] && exit 0',
        'echo "no such flag" >&2',
        "exit 3",
        "",
    )
    script.write_text("\n".join(lines))
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    args = ("good.onnx", *LEGAL, "--cache", "../empty")
    assert "failed with exit code 3" in refused(capsys, *args, code=4)
    assert optimize_main([*args, "-v"]) == 4
    assert "no such flag" in capsys.readouterr().err


def test_an_interrupt_in_any_step_leaves_nothing(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, steps = content(home), list[str]()

    def interrupt(at: int) -> Callable[[str], None]:
        def hear(step: str) -> None:
            steps.append(step)
            if len(steps) == at:
                raise KeyboardInterrupt

        return hear

    for at in (3, 5):
        steps.clear()
        with pytest.raises(KeyboardInterrupt):
            api.optimize(home / "good.onnx", progress=interrupt(at))
    assert content(home) == before


def _listen() -> None:
    """A shell starts what runs in the background with interrupts ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.compiler
def test_an_interrupt_while_compiling(tmp_path: Path) -> None:
    script, mark = tmp_path / "cxx", tmp_path / "started"
    script.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exit 0\ntouch {mark}\nexec sleep 1000\n'
    )
    script.chmod(0o755)
    folder = tmp_path / "models"
    folder.mkdir()
    model = product(folder / "m.onnx")
    process = subprocess.Popen(
        [*COMMAND, model, *LEGAL, "--cache", tmp_path / "cache"],
        env={**os.environ, "CXX": str(script)}, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        preexec_fn=_listen,
    )  # fmt: skip
    try:
        while not mark.exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=COMPILE_SECONDS - 10)  # it does not wait for the end
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert err.startswith("interrupted: no half-written file is left") and err.count("\n") == 1
    assert [path.name for path in folder.iterdir()] == ["m.onnx"]
