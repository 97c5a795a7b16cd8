"""No compiler, a broken one, an impatient user: the right exit code, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.support import COMMAND, UNTIMED, complaints, content, refused
from tests.tiny import ROOT, product
from tracea_graph import api
from tracea_graph.cli import optimize_main
from tracea_graph.cli.termination_signals import interrupt_exit_code, interrupt_on_signals
from tracea_graph.kernels.gpu import nvrtc
from tracea_graph.pipeline import stages
from tracea_graph.toolchain.compilers import COMPILE_SECONDS


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
    assert said in refused(capsys, "good.onnx", *UNTIMED, "--cache", "../empty", code=4)


def test_no_compiler_at_all(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    said = refused(capsys, "good.onnx", *UNTIMED, "--cache", "../empty", code=4)
    assert "No C++ compiler was found; install g++" in said


def test_missing_nvrtc_is_found_before_planning(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planning takes seconds, or minutes for a large model, and would be in vain."""
    worker = home / "worker.py"
    worker.write_text("import sys; sys.exit('no module named cuda')")
    monkeypatch.setattr(nvrtc, "_WORKER", worker)
    monkeypatch.setattr(stages, "guard_initializers_if_faster", None)
    nvrtc.find_nvrtc.cache_clear()
    args = ("good.onnx", *UNTIMED, "--target", "cuda", "--cache", "../empty")
    assert 'pip install "tracea-graph[cuda]"' in refused(capsys, *args, code=4)


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
    args = ("good.onnx", *UNTIMED, "--cache", "../empty")
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
    """A shell starts what runs in the background with interrupts ignored, and so does nohup."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@dataclass(frozen=True)
class Compiling:
    """A run whose compilers never end, and the folders it works in."""

    process: subprocess.Popen[str]
    models: Path
    temporary: Path
    compilers: Path

    def running(self) -> list[int]:
        """Processes of compilers, and of what those started, that have not ended."""
        started = [int(path.name) for path in self.compilers.iterdir()]
        return [pid for pid in started if alive(pid)]


def alive(pid: int) -> bool:
    """False for a process that has ended, whether or not its parent has noticed."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


@contextmanager
def compiling(folder: Path, ready: int = 1) -> Iterator[Compiling]:
    """A run of ``folder/models/m.onnx`` that has started ``ready`` compilers with a child each."""
    script, pids = folder / "cxx", folder / "pids"
    script.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exit 0\n'
        f'touch "$TMPDIR/cc$$.s"\nsleep 1000 &\ntouch {pids}/$! {pids}/$$\nwait\n'
    )
    script.chmod(0o755)
    for name in ("models", "tmp", "pids"):
        (folder / name).mkdir()
    model = product(folder / "models" / "m.onnx")
    process = subprocess.Popen(
        [*COMMAND, model, *UNTIMED, "--cache", folder / "cache"], cwd=ROOT,
        stderr=subprocess.PIPE, text=True,
        env={**os.environ, "CXX": str(script), "TMPDIR": str(folder / "tmp")},
        preexec_fn=_listen,
    )  # fmt: skip
    run = Compiling(process, model.parent, folder / "tmp", pids)
    try:
        while len(list(pids.iterdir())) < 2 * ready and process.poll() is None:
            time.sleep(0.05)
        yield run
    finally:
        process.kill()
        process.communicate()
        for pid in run.running():
            os.kill(pid, signal.SIGKILL)


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, 130, "interrupted: no half-written file is left"),
        (signal.SIGTERM, 143, "interrupted by SIGTERM: no half-written file is left"),
        (signal.SIGHUP, 129, "interrupted by SIGHUP: no half-written file is left"),
    ],
)
def test_an_interrupt_while_compiling(
    tmp_path: Path, number: signal.Signals, code: int, said: str
) -> None:
    with compiling(tmp_path) as run:
        run.process.send_signal(number)
        # it does not wait for the compiler's end
        _, err = run.process.communicate(timeout=COMPILE_SECONDS - 10)
        assert run.process.returncode == code, err
        err = complaints(err)
        assert err.startswith(said) and err.count("\n") == 1
        assert [path.name for path in run.models.iterdir()] == ["m.onnx"]
        assert list(run.temporary.iterdir()) == []
        assert run.running() == []


@pytest.mark.compiler
def test_compilers_die_with_a_run_that_is_killed(tmp_path: Path) -> None:
    with compiling(tmp_path) as run:
        assert len(run.running()) >= 2
        run.process.kill()
        run.process.wait()
        end = time.monotonic() + 100
        while run.running() and time.monotonic() < end:
            time.sleep(0.05)
        assert run.running() == []


@pytest.mark.compiler
def test_what_a_killed_run_left_goes_with_the_next(tmp_path: Path) -> None:
    with compiling(tmp_path, ready=2) as run:
        run.process.kill()
        run.process.wait()
        assert list(run.temporary.iterdir())
        assert len(list(run.models.iterdir())) == 2
        command = [*COMMAND, run.models / "m.onnx", *UNTIMED, "--no-custom-ops", "-q"]
        env = {**os.environ, "TMPDIR": str(run.temporary)}
        subprocess.run(command, env=env, cwd=ROOT, check=True)
        made = {f"m.tracea.{ending}" for ending in ("onnx", "json")}
        assert {path.name for path in run.models.iterdir()} == {"m.onnx", *made}
        assert list(run.temporary.iterdir()) == []


def test_a_second_signal_does_not_interrupt_the_cleaning_up() -> None:
    cleaned = False
    with pytest.raises(KeyboardInterrupt) as caught, interrupt_on_signals():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGHUP)
            cleaned = True
    assert cleaned and interrupt_exit_code(caught.value) == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_what_ignores_a_signal_goes_on_ignoring_it() -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupt_on_signals():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_threads_other_than_the_main_one_leave_signals_alone() -> None:
    seen: list[object] = []

    def look() -> None:
        with interrupt_on_signals():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]
