"""Every command in a terminal of 80 columns, and in a pipe: tables fit, nothing is broken."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import onnx
import pytest
from rich.text import Text

from tests.graphs import Net
from tracea_graph.cli import main, optimize_main
from tracea_graph.views import terminal_tables as fitted

pytestmark = pytest.mark.compiler
COLUMNS = 80
WHOLE = re.compile(
    r"(?:^|(?<=[\s(]))(?:\d[\d.,]*(?:e-\d+)?\s?(?:×|%|[mµ]s|[kMG]B|GB/s|GFLOP/s)|--?[a-z][a-z-]*)"
)
"""Numbers with units and names of options, which stand on one line."""
FREE = ("wrote ", "load it ", "error: ", "warning: ", "note: ", "limits ")
"""Sentences, which a pipe gets in one line; a terminal wraps them."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose nodes have long names, and its result."""
    home = tmp_path_factory.mktemp("widths")
    net = Net()
    x = net.input("input_of_the_first_module", "batch", 64)
    for i in range(2):
        path = f"/model/a_rather_deep/path/of.modules/encoder.{i}/attention/self"
        x = net("MatMul", x, net.weight(64, 64), name=f"{path}/query_key_value_projection/MatMul")
        x = net("Softmax", net("Relu", x, name=f"{path}/Relu"), name=f"{path}/Softmax")
    net.graph(net("Erf", x))
    onnx.save(net.model, home / "model.onnx")
    args = ["model.onnx", "--keep", "all", "--threads", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        assert optimize_main([*args, "-q", "--save-lock", "plan.json"]) == 0
    return home


COMMANDS = {
    "optimize": ["optimize", "model.onnx", "--lock", "plan.json", "-o", "again.onnx", "-v"],
    "explain": ["explain", "model.onnx"],
    "explain-node": ["explain", "model.onnx", "--node", "/model/a_rather_deep/path/of.modules/"
                     "encoder.0/attention/self/Softmax"],
    "inspect": ["inspect", "model.onnx"],
    "inspect-fused": ["inspect", "model.onnx", "--fused"],
    "stages": ["optimize", "model.onnx", "--until", "lower"],
    "verify": ["verify", "model.onnx", "model.tracea.onnx"],
    "bench": ["bench", "model.onnx", "--pairs", "3", "--threads", "1", "--baselines", "ort"],
    "profile": ["bench", "model.tracea.onnx", "--profile", "--pairs", "3", "--threads", "1"],
    "retune": ["bench", "retuned.onnx", "--retune", "--threads", "1", "--budget", "2"],
    "strip": ["strip", "model.tracea.onnx", "-o", "plain.onnx"],
    "tune": ["tune", "model.onnx", "--budget", "1", "--threads", "1"],
    "sweep": ["sweep", "model.onnx", "--max-error", "1e-2,1e-1", "--low-rank", "1", "--keep",
              "all", "--target", "cpu:scalar", "--threads", "1"],
    "doctor": ["doctor"],
    "doctor-op": ["doctor", "gemm", "--shape", "128,768,768"],
    "cache": ["cache", "ls"],
}  # fmt: skip


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize("command", COMMANDS)
def test_it_fits(
    command: str,
    terminal: bool,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("COLUMNS", raising=False)
    if terminal:
        monkeypatch.setenv("COLUMNS", str(COLUMNS))
        monkeypatch.setenv("TTY_COMPATIBLE", "1")
        monkeypatch.setenv("FORCE_COLOR", "1")
    for ending in ("onnx", "so", "json") if command == "retune" else ():
        shutil.copy(f"model.tracea.{ending}", f"retuned.{ending}")
    broken = watch(monkeypatch)
    name, *args = COMMANDS[command]
    code = optimize_main(args) if name == "optimize" else main([name, *args])
    out = capsys.readouterr().out
    assert code == 0 and out
    assert ("\x1b[" in out) <= terminal and "\x1b[3" not in out.replace("\x1b[3m", "")
    assert not broken
    lines = [line.rstrip() for line in plain(out).splitlines()]
    for line in lines if terminal else tables(lines):
        assert len(line) <= COLUMNS, line


def watch(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what becomes the list of numbers and options that cells of tables break."""
    broken: list[str] = []
    wrapped = fitted._wrapped

    def checked(text: Text, width: int) -> Text:
        shown = wrapped(text, width)
        lines = shown.plain.split("\n")
        broken.extend(
            part for part in WHOLE.findall(text.plain) if not any(part in line for line in lines)
        )
        return shown

    monkeypatch.setattr(fitted, "_wrapped", checked)
    return broken


def plain(text: str) -> str:
    """Text without the escapes of bold and italic type."""
    for escape in ("\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[3m"):
        text = text.replace(escape, "")
    return text


def tables(lines: list[str]) -> list[str]:
    """The lines of all tables: from the one above a rule to the next empty line."""
    found: list[str] = []
    for i, line in enumerate(lines):
        if line and set(line) == {"─"}:
            assert 0 < len(line) <= COLUMNS
            rest = lines[i + 1 :]
            end = rest.index("") if "" in rest else len(rest)
            columns = [row for row in rest[:end] if "   " in row]
            found += [lines[i - 1], *columns]
    return found
