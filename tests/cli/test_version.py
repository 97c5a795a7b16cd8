"""What is asked of a command as a whole: its version, the words a shell completes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tracea_graph.cli import main, optimize_main
from tracea_graph.version import VERSION


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "tracea_graph", "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"tracea {VERSION}, onnxruntime ")


@pytest.mark.parametrize("run", [main, optimize_main])
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_gets_what_it_completes_words_with(
    run: object, shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        run(["--print-completion", shell])  # type: ignore[operator]
    assert "--budget" in capsys.readouterr().out
