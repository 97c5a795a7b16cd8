"""The table of ``python -m models.cores``."""

from __future__ import annotations

from models.cores import means_of, rows_of, trace_row
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
