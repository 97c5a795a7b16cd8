"""The recipes of the documentation are followed literally, in a copy of the repository.

A ``python file=…`` block writes a file, a ``diff file=…`` block edits one, and every line of a
``console`` block that begins with ``$`` must succeed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import ROOT

RECIPES = sorted(path.name for path in (ROOT / "docs").glob("add-a*.md"))
COPIED = ("tracea_graph", "passes", "kernels", "tests", "models", "docs", "pyproject.toml")
BLOCK = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", re.M | re.S)


def edited(text: str, diff: str) -> str:
    """A text after a change that is written as lines of a diff, without line numbers.

    Raises ValueError unless the lines that are kept or removed stand there exactly once.
    """
    lines = diff.splitlines(keepends=True)
    if not all(line[:1] in " +-" for line in lines):
        raise ValueError(f"not lines of a diff: {diff}")
    old = "".join(line[1:] for line in lines if line[0] != "+")
    new = "".join(line[1:] for line in lines if line[0] != "-")
    if text.count(old) != 1:
        raise ValueError(f"there {text.count(old)} times:\n{old}")
    return text.replace(old, new)


def copy_of_the_repository(folder: Path) -> Path:
    skip = shutil.ignore_patterns("__pycache__", "build", "graphs")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=skip)
        else:
            shutil.copy(ROOT / name, folder)
    return folder


def run(line: str, folder: Path) -> None:
    bin_folder = Path(sys.executable).parent
    env = {
        **os.environ,
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(folder),
        "PYTEST_ADDOPTS": "-p no:cacheprovider",
    }
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=folder, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"$ {line}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


def test_a_change_is_made_where_its_lines_stand() -> None:
    assert edited("a\nb\nc\n", " b\n+x\n-c\n") == "a\nb\nx\n"
    with pytest.raises(ValueError, match="there 2 times"):
        edited("a\na\n", " a\n+b\n")
    with pytest.raises(ValueError, match="not lines of a diff"):
        edited("a\n", "a\n")


@pytest.mark.compiler
@pytest.mark.parametrize(
    "recipe",
    [pytest.param(r, marks=[pytest.mark.slow] * (r != "add-an-op.md")) for r in RECIPES],
)
def test_a_recipe_works(recipe: str, tmp_path: Path) -> None:
    folder = copy_of_the_repository(tmp_path)
    done = 0
    for kind, name, text in BLOCK.findall((ROOT / "docs" / recipe).read_text(encoding="utf-8")):
        path = folder / name
        if kind == "diff":
            path.write_text(edited(path.read_text("utf-8"), text), encoding="utf-8")
        elif kind == "python" and name:
            assert not path.exists()
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        else:
            assert kind == "console"
            for line in text.splitlines():
                assert line.startswith("$ ")
                run(line[2:], folder)
                done += 1
    assert done
