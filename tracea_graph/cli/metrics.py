"""``tracea metrics``: summarize a profile of runs in production."""

from __future__ import annotations

import argparse

from rich.console import Console

from tracea_graph.commands.production_telemetry import (
    call_rows,
    call_work_by_node,
    perfetto_trace,
    prometheus_text,
    read_runs,
    rows_csv,
    rows_jsonl,
)
from tracea_graph.pipeline.output_files import check_file, write_text

__all__ = ["run_metrics"]


def run_metrics(args: argparse.Namespace, console: Console) -> int:
    """Write the formats that were asked for, print metrics, and return the exit code."""
    for kind in ("csv", "jsonl", "trace"):
        if (path := getattr(args, kind)) is not None:
            check_file(path, f"--{kind}", [args.profile])
    runs = read_runs(args.profile)
    works = call_work_by_node(args.model, runs) if args.model else {}
    rows = call_rows(runs, works)
    if args.csv is not None:
        write_text(args.csv, rows_csv(rows))
    if args.jsonl is not None:
        write_text(args.jsonl, rows_jsonl(rows))
    if args.trace is not None:
        write_text(args.trace, perfetto_trace(runs, works))
    console.print(prometheus_text(runs, works), markup=False, soft_wrap=True, end="")
    return 0
