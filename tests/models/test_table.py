"""The zoo's table: a line for each size, means over first ones, put between its marks."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.bench import main
from models.make import available
from models.score import Score, markdown, marks, replace_table, scores
from models.sizes import SIZES
from tracea_graph.errors import UsageError
from tracea_graph.views.bench import BenchReport, BenchRow

MS = {"s=128": (20.0, 10.0), "s=16": (4.0, 3.0)}
"""Binding → ms of the original on 1 and 2 threads; results take half and a quarter."""


def _report() -> BenchReport:
    rows = []
    for (binding, ms), gain in zip(MS.items(), (2.0, 4.0), strict=True):
        for threads, original in enumerate(ms, 1):
            timed = {"m.onnx": 1.0, "m.tracea.onnx": gain, "OpenVINO f32": 1.0}
            rows += [
                BenchRow(name, threads, binding, original / g, 0.0, g, g, g, 1e-6, *counts)
                for (name, g), counts in zip(timed.items(), ((0, 9), (1, 3), (0, 0)), strict=True)
            ]
    return BenchReport("m.onnx", tuple(rows), {"s=128": 1.5, "s=16": 0.2})


def test_a_model_has_a_line_for_each_size_and_the_first_alone_is_in_the_means() -> None:
    lines = scores("m", _report(), kept=False, programs=0.97)
    assert [(s.binding, s.gflop, s.further) for s in lines] == [
        ("s=128", 1.5, False),
        ("s=16", 0.2, True),
    ]
    first, second, mean = markdown(lines, "note").splitlines()[2:5]
    assert "| 20 / 10 | 10 / 5 | 2.00× | 2.00× |" in first
    assert "| 97% | 1e-06 | 1 of 3 |" in first
    assert "| 4 / 3 | 1 / 0.75 | 4.00× | 4.00× |" in second
    assert "%" not in second
    assert mean.startswith("| geometric mean |  |  |  | 2.00× | 2.00× |")


def test_a_kept_model_counts_as_one() -> None:
    lines = scores("m", _report(), kept=True)
    text = markdown(lines, "note").splitlines()
    assert "| kept | 1 | 1 |" in text[2]
    assert "| 1.00× | 1.00× |" in text[4]


def test_lines_survive_being_stored() -> None:
    first, _ = scores("m", _report(), kept=False, programs=0.5)
    stored = {**vars(first), "ms": {k: list(v) for k, v in (first.ms or {}).items()}}
    assert Score.of(stored) == first


def test_each_precision_has_its_own_place(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("".join(f"{m}\n" for p in ("fp32", "bf16") for m in marks(p)), "utf-8")
    replace_table(page, "bf16", "new\n")
    assert page.read_text("utf-8").splitlines() == [*marks("fp32"), *_around("bf16", "new")]
    with pytest.raises(UsageError, match="int16: begin"):
        replace_table(page, "int16", "new\n")
    assert main(["--precision", "int16", "--write", str(page)]) == 2


def test_sizes_are_those_of_models_in_the_zoo() -> None:
    assert set(SIZES) <= set(available())
    assert all(first == {} for first, *_ in SIZES.values())


def _around(precision: str, text: str) -> list[str]:
    begin, end = marks(precision)
    return [begin, text, end]
