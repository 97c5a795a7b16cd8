"""``tracea sweep``: optimize once for each error budget, and compare the speedups."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from tracea_graph import api
from tracea_graph.cli.arguments import options_from_args
from tracea_graph.cli.console import make_console, print_written_files
from tracea_graph.cli.progress import StepDisplay
from tracea_graph.errors import UsageError
from tracea_graph.pipeline.output_files import check_file, write_text
from tracea_graph.views import Report, plain_text
from tracea_graph.views.charts import check_charts
from tracea_graph.views.sweep import SweepPoint, pareto_svg, render_sweep, sweep_warnings

__all__ = ["run_sweep"]

_ALONE = 1.0
"""Default of ``--low-rank`` in a sweep: the error budget alone decides."""


def run_sweep(args: argparse.Namespace, console: Console) -> int:
    """Optimize once per error budget and return the exit code.

    Raises UsageError for several models, and whatever :func:`tracea_graph.api.optimize` raises.
    """
    if len(args.models) != 1:
        raise UsageError("tracea sweep takes one model")
    (model,) = args.models
    console.quiet = args.quiet
    largest = argparse.Namespace(**{**vars(args), "max_error": args.max_error[-1]})
    options = options_from_args(largest)  # base options; each budget replaces max_error
    if args.svg is not None:
        check_file(args.svg, "--svg", args.models)
        check_charts()
        if options.keep == "all":
            raise UsageError("--svg draws times, but --keep all measures none")
    if not options.compresses:
        options = dataclasses.replace(options, low_rank=_ALONE)
    points: list[SweepPoint] = []
    progress = make_console(stderr=True, quiet=args.quiet or args.json)
    try:
        for budget in args.max_error:
            output = _place(model, options.output, budget)
            one = dataclasses.replace(options, max_error=budget, output=output)
            with StepDisplay(f"{model.name} under {budget:g}", progress) as shown:
                points.append(_point(budget, api.optimize(model, one, shown)))
    finally:  # an error or an interrupt loses no result that was written before it
        if points:
            _show(points, args, console)
    return 0


def _show(points: Sequence[SweepPoint], args: argparse.Namespace, console: Console) -> None:
    """Print the table or the JSON, and draw the picture."""
    drawn = args.svg is not None and any(p.ms for p in points)
    if drawn:
        name = args.models[0].name
        write_text(args.svg, pareto_svg(points, f"{name}: error against time"))
    if args.json:
        json.dump([dataclasses.asdict(p) for p in points], sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        console.print(render_sweep(points))
        for warning in sweep_warnings(points):
            console.print(f"warning: {escape(plain_text(warning))}", style="yellow")
        if drawn:
            print_written_files(console, args.svg)
        elif args.svg is not None:
            console.print(f"nothing was timed: {escape(str(args.svg))} was not written")


def _place(model: Path, output: Path | None, budget: float) -> Path:
    """Return ``MODEL.EPS.onnx`` in the folder that ``-o`` names, or beside the model.

    Raises UsageError if ``-o`` names a file.
    """
    if output is not None and output.suffix and not output.is_dir():
        raise UsageError(f"-o {output} must be a folder: a sweep writes several results")
    folder = model.parent if output is None else output
    folder.mkdir(exist_ok=True)
    return folder / f"{model.stem}.{budget:g}.onnx"


def _point(budget: float, report: Report) -> SweepPoint:
    """Summarize a result at the first shape and thread count; if not improved, the original."""
    rows = report.timings or report.tried
    first = rows[0] if rows else None
    before = first.before_ms if first else 0.0
    after = before / first.ratio if first and report.improved else before
    error = report.holdout_error if report.holdout_error is not None else report.error or 0.0
    layers = sum(row.kept for row in report.compressed)
    at = (first.binding, first.threads) if first else ("", 0)
    return SweepPoint(
        budget, error if report.improved else 0.0, before, after, layers, report.output,
        *at, report.improved, report.warnings,
    )  # fmt: skip
