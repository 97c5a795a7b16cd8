"""Metrics, tables and timelines of a profile that runs in production left."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from tests.tiny import child, transformer
from tracea_graph import api
from tracea_graph.cli.main import main
from tracea_graph.commands.telemetry import (
    PHASES,
    call_rows,
    metrics_text,
    read_runs,
    timeline,
    works_of,
)
from tracea_graph.errors import UsageError
from tracea_graph.options import Options

pytestmark = pytest.mark.usefixtures("highest_level")

PROFILE = (
    "block 0\t4,8\t1000,3000\t5000,77\n"
    "block 0\t4,8\t2000,3000\t15000,77\n"
    "block 0\t1,8\t500,600\t25000,78\n"
    "block 0\t4,8\t1000,30"  # still being written
)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "runs.txt"
    path.write_text(PROFILE)
    return path


def test_calls_are_summarized_by_size(profile: Path) -> None:
    rows = call_rows(read_runs(profile), {})
    assert [(r.call, r.runs, r.mean_us) for r in rows] == [
        (1, 2, 3.0), (0, 2, 1.5), (1, 1, 0.6), (0, 1, 0.5)
    ]  # fmt: skip
    assert (rows[1].p50_us, rows[1].p95_us, rows[1].p99_us) == (1.0, 2.0, 2.0)
    assert rows[0].gflops is None


def test_metrics_are_prometheus_text(profile: Path) -> None:
    lines = metrics_text(read_runs(profile), {}).splitlines()
    assert 'tracea_node_seconds_bucket{node="block 0",le="1e-06"} 0' in lines
    assert 'tracea_node_seconds_bucket{node="block 0",le="2.5e-06"} 1' in lines
    assert 'tracea_node_seconds_bucket{node="block 0",le="+Inf"} 3' in lines
    assert 'tracea_node_seconds_count{node="block 0"} 3' in lines
    assert 'tracea_node_seconds_sum{node="block 0"} 1.01e-05' in lines
    assert 'tracea_kernel_seconds_total{kernel="unknown",phase="host"} 1.01e-05' in lines


def test_the_timeline_begins_at_the_first_run(profile: Path) -> None:
    events = json.loads(timeline(read_runs(profile), {}))["traceEvents"]
    assert [(e["name"], e["ts"], e["dur"], e["tid"]) for e in events[:4]] == [
        ("block 0", 0.0, 4.0, 77), ("call 0", 0.0, 1.0, 77), ("call 1", 1.0, 3.0, 77),
        ("block 0", 10.0, 5.0, 77),
    ]  # fmt: skip
    assert all(e["ph"] == "X" for e in events)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("no profile\n")
    with pytest.raises(UsageError, match="is no file that TRACEA_PROFILE wrote"):
        read_runs(tmp_path / "x")
    with pytest.raises(UsageError, match="cannot be read"):
        read_runs(tmp_path / "none")


RUN = """
import sys, numpy, onnxruntime
import tracea_graph as tg
session = tg.session(sys.argv[1])
feeds = dict(numpy.load(sys.argv[2]))
for _ in range(5):
    session.run(None, feeds)
"""


@pytest.mark.compiler
def test_a_result_that_runs_is_profiled_call_by_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.tiny import padded_text

    report = api.optimize(transformer(tmp_path), Options(keep="all", verify=False))
    np.savez(tmp_path / "feeds.npz", **padded_text())
    profile = tmp_path / "runs.txt"
    monkeypatch.setenv("TRACEA_PROFILE", str(profile))
    child(RUN, report.output, tmp_path / "feeds.npz")
    runs = read_runs(profile)
    works = works_of(Path(report.output), runs)
    assert works
    rows = call_rows(runs, works)
    assert {row.phase for row in rows} <= {*PHASES}
    assert any(row.phase == "mma" and row.gflops and row.size for row in rows)
    files = (
        "--csv",
        tmp_path / "a.csv",
        "--jsonl",
        tmp_path / "a.jsonl",
        "--trace",
        tmp_path / "t",
    )
    assert main(["metrics", str(profile), str(report.output), *map(str, files)]) == 0
    assert 'kernel="attention",phase="mma"' in capsys.readouterr().out
    table = list(csv.DictReader((tmp_path / "a.csv").open()))
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [row["kernel"] for row in table] == [row["kernel"] for row in lines]
    assert all(row["runs"] == 5 for row in lines)
    events = json.loads((tmp_path / "t").read_text())["traceEvents"]
    assert {"node", "mma"} <= {event["cat"] for event in events}
