"""``--help`` fits its reader: common options first, 80 columns, an example, and no waiting."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiny import ROOT
from tracea_graph.check.baseline_runtimes import BASELINES
from tracea_graph.cli.arguments import join_subcommands, optimize_parser, tool_parser
from tracea_graph.cli.parser import Parser
from tracea_graph.target import targets
from tracea_graph.target_names import TARGETS

HEAVY = (
    "jinja2", "networkx", "numpy", "onnx", "onnxruntime", "optuna", "rich", "yaml",
    "tracea_graph.api", "tracea_graph.kernels.cpu.backend", "tracea_graph.passes",
    "tracea_graph.target", "tracea_graph.views",
)  # fmt: skip
COMMON = ["output", "target", "precision", "max-error", "data", "shape", "threads", "budget"]


def parsers(parser: argparse.ArgumentParser) -> Iterator[Parser]:
    """A parser and all of its subcommands."""
    assert isinstance(parser, Parser)
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from parsers(one)


EVERY = {p.prog: p for p in (optimize_parser(), *parsers(tool_parser()))}


@pytest.mark.parametrize("prog", EVERY)
def test_help_fits_and_has_examples(prog: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    parser = EVERY[prog]
    lines = parser.format_help().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"usage: {prog} ") and "--help" in parser.format_help()
    assert parser.examples and lines[-1] == f"  {parser.examples[-1]}"


OURS = [line for p in EVERY.values() for line in p.examples if line.startswith("tracea")]
"""Examples that run this tool; others run programs of the reader's."""


@pytest.mark.parametrize("line", OURS)
def test_examples_parse(line: str) -> None:
    prog, *words = shlex.split(line)
    parser = optimize_parser() if prog == "tracea-optimize" else tool_parser()
    assert parser.parse_args(join_subcommands(words))


@pytest.mark.parametrize("prog", ["tracea-optimize", "tracea optimize"])
def test_the_options_most_people_need_come_first(prog: str) -> None:
    flags = re.findall(r"^  (?:-\w [A-Z]+, )?--([\w-]+)", EVERY[prog].format_help(), re.MULTILINE)
    assert flags[: len(COMMON)] == COMMON


def test_baselines_and_targets_are_those_there_are() -> None:
    said = " ".join(EVERY["tracea bench"].format_help().split()).replace("- ", "-")
    assert all(one.name in said for one in BASELINES)
    assert targets() == TARGETS


@pytest.mark.parametrize(
    ("entry", "words", "code"),
    [
        ("optimize_main", ["--help"], 0),
        ("main", ["--help"], 0),
        ("main", ["bench", "--help"], 0),
        ("main", ["doctor", "--help"], 0),
        ("optimize_main", ["m.onnx", "--keap", "all"], 2),
    ],
)
def test_help_and_typos_load_nothing_heavy(
    entry: str, words: list[str], code: int, tmp_path: Path
) -> None:
    script = (
        f"import json, sys\nfrom tracea_graph.cli import {entry} as entry\n"
        "try:\n    code = entry(sys.argv[1:])\n"
        "except SystemExit as ended:\n    code = ended.code\n"
        f"found = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "print(json.dumps([code, found]))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, *words], cwd=ROOT, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert json.loads(ended.stdout.splitlines()[-1]) == [code, []]


def test_public_names_are_loaded_when_used() -> None:
    import tracea_graph

    assert all(getattr(tracea_graph, name) is not None for name in tracea_graph.__all__)
    assert sorted(tracea_graph.__all__) == dir(tracea_graph)
    with pytest.raises(AttributeError, match="has no attribute 'optimise'"):
        _ = tracea_graph.optimise
