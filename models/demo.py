"""Compare a result with its original: ``python -m models.demo ORIGINAL.onnx RESULT.onnx``.

Both run alternately in plain onnxruntime on one thread and the same inputs; the result is a table.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from rich.console import Console

from tracea_graph import api
from tracea_graph.check.input_feeds import choose_bindings, synthesize_inputs
from tracea_graph.check.timing_statistics import PairedTimes, Ratio, speed_ratio
from tracea_graph.views.terminal_tables import Column, FittedTable

__all__ = ["compare", "error_between", "kernel_nodes", "main", "open_session", "summary", "table"]

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = Sequence[Array]
PAIRS, LONGEST_S, WARM_UP_RUNS = 60, 20.0, 3


def open_session(model: Path) -> ort.InferenceSession:
    """Open a session of one thread, with the library beside the model registered if there is
    one."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if (library := model.with_suffix(".so")).is_file():
        options.register_custom_ops_library(str(library.resolve()))
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def compare(
    before: ort.InferenceSession, after: ort.InferenceSession, feeds: Mapping[str, Array]
) -> PairedTimes:
    """Time both alternately, swapping the order each round, for 60 rounds or 20 seconds."""
    times: tuple[list[float], list[float]] = ([], [])
    sessions, end = (before, after), 0.0
    for number in range(-WARM_UP_RUNS, PAIRS):
        end = end or time.perf_counter() + LONGEST_S
        for which in (0, 1) if number % 2 else (1, 0):
            start = time.perf_counter()
            sessions[which].run(None, feeds)
            if number >= 0:
                times[which].append(1e3 * (time.perf_counter() - start))
        if number > 0 and time.perf_counter() > end:
            break
    return PairedTimes(tuple(times[0]), tuple(times[1]))


def error_between(expected: Arrays, got: Arrays) -> float:
    """Return the largest ``|y − y'|`` of all numeric outputs, as a share of that output's
    ``max|y|``."""
    worst = 0.0
    for a, b in zip(expected, got, strict=True):
        if a.size and a.dtype.kind in "biuf":
            wide = a.astype(np.float64)
            worst = max(worst, float(np.abs(wide - b).max()) / (float(np.abs(wide).max()) or 1.0))
    return worst


def kernel_nodes(model: Path) -> tuple[int, int]:
    """Return the number of nodes that call the library beside ``model``, and of all nodes."""
    nodes = onnx.load(str(model), load_external_data=False).graph.node
    present = model.with_suffix(".so").is_file()
    return sum(present and node.domain.startswith("tracea.") for node in nodes), len(nodes)


def table(title: str, rate: Ratio, error: float, ran: tuple[int, int]) -> FittedTable:
    """Return a table of one row: times, speedup, error, nodes run as kernels."""
    heads = ("before", "after", "speedup", "99 % bounds", "pairs", "max error", "kernels")
    spare = {"pairs": 1}
    made = FittedTable(title, [Column(h, "right", spare=spare.get(h, 0)) for h in heads])
    made.add_row(
        f"{rate.a_ms:.2f} ms", f"{rate.b_ms:.2f} ms", f"{rate.median:.3f}×",
        f"{rate.low:.3f}–{rate.high:.3f}", str(rate.pairs), f"{error:.1e} of max|y|",
        f"{ran[0]} of {ran[1]}",
    )  # fmt: skip
    return made


def summary(report: Path) -> str:
    """Return the outcome in words, the warnings, and the path of the full report."""
    content = json.loads(report.read_text(encoding="utf-8"))
    warnings = (f"warning: {text}" for text in content["warnings"])
    return "\n".join(
        [f"{content['outcome']}: {content['reason']}", *warnings, f"rewrite by rewrite: {report}"]
    )


def main() -> None:
    """Parse the command line, compare, print the table."""
    parser = argparse.ArgumentParser(prog="python -m models.demo", description=__doc__)
    parser.add_argument("original", type=Path)
    parser.add_argument("result", type=Path)
    args = parser.parse_args()
    graph = api.load(args.original)
    binding = choose_bindings(graph)[0][0]
    feeds = synthesize_inputs(graph, binding)
    before, after = open_session(args.original), open_session(args.result)
    error = error_between(before.run(None, feeds), after.run(None, feeds))
    rate = speed_ratio(compare(before, after, feeds))
    title = f"{args.original.name}, {binding.label}, 1 thread, plain onnxruntime, medians"
    console = Console(highlight=False)
    console.print(table(title, rate, error, kernel_nodes(args.result)))
    console.print(summary(args.result.with_suffix(".json")), markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
