"""What the tests of failing commands share: a good model, and what a refusal must look like."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tracea_graph.cli import optimize_main

__all__ = ["COMMAND", "LEGAL", "content", "refused"]

LEGAL = ("--keep", "legal", "--no-verify")
COMMAND = (
    sys.executable,
    "-c",
    "import sys; from tracea_graph.cli import optimize_main; sys.exit(optimize_main())",
)
"""``tracea-optimize`` as a process of its own."""


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


def refused(capsys: pytest.CaptureFixture[str], *args: str, code: int = 2) -> str:
    """The one line on stderr of a command that fails and changes nothing in this folder."""
    before = content(Path())
    assert optimize_main([*args]) == code
    assert content(Path()) == before
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    assert "Traceback" not in err and "(a bug" not in err
    return err
