"""Make, optimize, time and profile one model of the zoo in its own process.

``python -m models.bench_worker NAME FOLDER ROW.json KEEP BUDGET PAIRS PRECISION THREADS`` is
started by ``models.bench``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from datetime import date
from pathlib import Path

from models.make import make
from models.score import scores
from models.sizes import sizes_of
from tracea_graph.check.baseline_runtimes import BASELINES
from tracea_graph.cli import optimize_main
from tracea_graph.commands.bench import BenchOptions, bench
from tracea_graph.commands.profile import profile
from tracea_graph.errors import TraceaError, UsageError
from tracea_graph.health_check import Doctor
from tracea_graph.views.bench import environment_line

__all__ = ["main", "run"]


def run(
    name: str,
    folder: Path,
    keep: str,
    budget: float,
    pairs: int,
    precision: str,
    threads: tuple[int, ...],
) -> dict[str, object]:
    """Return the rows of a model, its warnings and a description of the measurement.

    Raises TraceaError if the model cannot be optimized or does not run.
    """
    original = make(name, folder)
    result = original.with_name(f"{name}.tracea.onnx")
    words = ["--keep", keep, "--budget", str(budget)]
    words += ["--precision", precision] if precision != "fp32" else []
    words += ["--threads", ",".join(map(str, threads))]
    if code := optimize_main([str(original), "-o", str(result), "-q", "--no-cache", *words]):
        raise UsageError(f"tracea-optimize failed with code {code}")
    kept = json.loads(result.with_suffix(".json").read_text("utf-8"))["outcome"] != "improved"
    if kept:
        result.unlink()
    baselines = tuple(baseline.name for baseline in BASELINES if baseline.version)
    options = BenchOptions(
        threads=threads, shapes=sizes_of(name), pairs=pairs, baselines=baselines
    )
    report = bench([original] if kept else [original, result], options)
    figures = Doctor(refresh=True).figures  # the clock may have changed since the last time
    share = 0.0
    if not kept:
        share = profile(result, BenchOptions(threads=threads[:1], pairs=pairs)).in_programs
    return {
        "scores": [asdict(s) for s in scores(name, report, kept, share, figures)],
        "warnings": list(report.warnings),
        "made": f"{environment_line(report.versions, report.machine)}, {date.today()}",
    }


def main(argv: list[str]) -> int:
    """Run one model; any failure becomes its row."""
    name, folder, row, keep, budget, pairs, precision, threads = argv
    counts = tuple(map(int, threads.split(",")))
    try:
        found = run(name, Path(folder), keep, float(budget), int(pairs), precision, counts)
    except TraceaError as error:
        found = {"scores": [{"name": name, "failed": str(error)}], "warnings": [], "made": ""}
    Path(row).write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
