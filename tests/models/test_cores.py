"""The table of ``python -m models.cores``."""

from __future__ import annotations

from pathlib import Path

import pytest

from models import cores
from models.cores import add_times, main, means_of, read_times, rows_of, trace_row
from models.versions_in_turn import RacedTimes
from tracea_graph.views.timeline import TaskSpan, Timeline

FOUND = {
    1: {"ONNX Runtime": RacedTimes(10.0, 1.0, True), "fp32": RacedTimes(8.0, 0.8, False)},
    8: {"ONNX Runtime": RacedTimes(2.5, 1.0, True), "fp32": RacedTimes(1.25, 0.5, False)},
}


def test_rows_have_times_speeds_and_efficiencies() -> None:
    """Eight threads that take an eighth of one thread's time have an efficiency of 100 %."""
    assert list(rows_of("net", FOUND)) == [
        "| net | ONNX Runtime | 10 | 2.5 | 50 % |",
        "| net | fp32 | 8 (1.25×) | 1.25 (2.00×) | 80 % |",
    ]


def test_means_are_geometric_and_of_models_that_have_a_result() -> None:
    """A model that kept its original takes no part."""
    slower = {n: row | {"fp32": RacedTimes(9.0, 2.0, False)} for n, row in FOUND.items()}
    without = {n: {"ONNX Runtime": row["ONNX Runtime"]} for n, row in FOUND.items()}
    assert list(means_of([FOUND, slower, without])) == [
        "| geometric mean of 2 | fp32 | 0.79× | 1.00× |"
    ]


def test_a_table_without_one_thread_has_no_efficiencies() -> None:
    assert list(rows_of("net", {8: FOUND[8]}))[1] == "| net | fp32 | 1.25 (2.00×) |"


def test_a_trace_says_where_the_threads_time_goes() -> None:
    """Two threads run tasks of 3 ms in a run of 2 ms, those of one thread take 2 ms."""
    tasks = (TaskSpan(0, 0, 0.0, 2000.0), TaskSpan(0, 1, 0.0, 1000.0))
    timeline = Timeline("net", 2000.0, ("gemm 8×16×32",), tasks, alone=2000.0)
    assert trace_row("net", "bf16", timeline) == (
        "| net | bf16 | 2 | 2, 1 | 1.50 | 75 % | 0 % | 0 % | 25 % | 0 % | 0 % |"
    )


def test_times_of_earlier_runs_are_read_under_the_same_settings(tmp_path: Path) -> None:
    """A file holds runs of several settings; a model's times come back as they were."""
    file = tmp_path / "times"
    assert read_times(file, "threads 8") == {}
    add_times(file, "threads 8", "net", FOUND)
    add_times(file, "threads 8, batch 32", "other", FOUND)
    assert read_times(file, "threads 8") == {"net": FOUND}


def test_the_same_command_goes_on_where_the_last_one_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After its limit a run begins no model, says which are left, and the next one times those."""
    raced, folder = list[str](), tmp_path / "made"

    def found(name: str, *_: object) -> cores.Found:
        raced.append(name)
        return FOUND

    monkeypatch.setattr(cores, "_make_results", lambda names, *_: dict.fromkeys(names, folder))
    monkeypatch.setattr(cores, "_race", found)
    words = ["a", "b", "--threads", "1,8", "--times", str(tmp_path / "times")]
    assert main([*words, "--limit", "-1"]) == 0
    assert "not measured within -1 s: a, b" in capsys.readouterr().out
    add_times(tmp_path / "times", "threads 1,8, fp32,bf16, batch 1", "a", FOUND)
    assert main(words) == 0
    assert raced == ["b"]
    out = capsys.readouterr().out
    assert "| a | fp32 | 8 (1.25×) | 1.25 (2.00×) | 80 % |" in out
    assert "| geometric mean of 2 | fp32 | 1.25× | 2.00× |" in out
