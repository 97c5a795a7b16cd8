"""Telemetry rows are right, survive a kill, and become curves."""

from __future__ import annotations

import csv
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tracea_graph.check.timing_statistics import PairedTimes
from tracea_graph.kernels.cpu.schedule import GemmSchedule
from tracea_graph.kernels.cpu.schedules.gemm_problem import GemmProblem
from tracea_graph.tuning import Case, CaseFinished, TrialMeasured, TuningResult, TuningStarted
from tracea_graph.tuning.telemetry import (
    Telemetry,
    read_telemetry_rows,
    telemetry_files,
    write_csv,
)
from tracea_graph.views.tuning_tables import convergence_curves, convergence_svg

CASE = Case(GemmProblem(512, 1024), 64)
FAST, SLOW = GemmSchedule(512, mc=64), GemmSchedule(512, mc=32)


def recorded(folder: Path) -> Path:
    with Telemetry(folder, "model") as telemetry:
        telemetry(
            TuningStarted((TuningResult(CASE, FAST, 1.0, "default", "never measured"),), (), 60.0)
        )
        for schedule, ms in ((SLOW, 2.5), (FAST, 1.6), (SLOW, 2.4)):
            times = PairedTimes((2.0,) * 20, (*(ms,) * 18, 2 * ms, 3 * ms))
            telemetry(TrialMeasured(CASE, schedule, 1, "search", times))
        telemetry(TrialMeasured(CASE, SLOW, 1, "search", None, "the worker died (SIGSEGV)"))
        telemetry(CaseFinished(TuningResult(CASE, FAST, 1.25, "measured", share=0.5), 3.0, 2))
    return telemetry.path


def test_rows_say_how_fast_and_with_what(tmp_path: Path) -> None:
    path = recorded(tmp_path / "t")
    assert telemetry_files(tmp_path / "t") == [path]
    rows = read_telemetry_rows(path)
    assert [row["what"] for row in rows] == ["cached", *["trial"] * 4, "region"]
    fast = rows[2]
    flops, moved = 2 * 64 * 512 * 1024, 4 * (512 * 1024 + 64 * (512 + 1024))
    assert fast["gflops"] == pytest.approx(flops / 1.6e-3 / 1e9)
    assert fast["gbytes"] == pytest.approx(moved / 1.6e-3 / 1e9)
    assert (fast["ms"], fast["p95_ms"], fast["gain"]) == (1.6, 3.2, 1.25)
    assert fast["config"]["mc"] == 64
    assert rows[4]["fault"] and "ms" not in rows[4]


def test_a_killed_run_loses_its_last_line_only(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    whole = read_telemetry_rows(path)
    path.write_bytes(path.read_bytes()[:-20])
    assert read_telemetry_rows(path) == whole[:-1]


def test_rows_become_a_table(tmp_path: Path) -> None:
    rows = read_telemetry_rows(recorded(tmp_path))
    write_csv(rows, tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert len(read) == len(rows) and read[2]["mc"] == "64" and read[2]["ms"] == "1.6"


def test_curves_only_rise_and_are_drawn(tmp_path: Path) -> None:
    (curve,) = convergence_curves(read_telemetry_rows(recorded(tmp_path)))
    assert [gain for _, gain in curve.points] == [1.0, 1.25, 1.25]
    assert (curve.best, curve.settled, curve.config["mc"]) == (1.25, 1.25, 64)
    svg = ET.fromstring(convergence_svg([curve], "a <title>"))
    text = "".join(svg.itertext())
    assert "a <title>" in text and "1.250×" in text


def test_a_folder_that_cannot_be_written_costs_rows_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with Telemetry(tmp_path / "file" / "t", "m") as telemetry:
        telemetry(CaseFinished(TuningResult(CASE, FAST, 1.0, "measured"), 1.0, 1))
    assert not telemetry.path.exists()
