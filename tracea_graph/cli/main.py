"""``tracea-optimize`` and ``tracea``: parse, call the API, print."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from tracea_graph import api
from tracea_graph.cli.arguments import optimize_parser, options_of, tool_parser
from tracea_graph.config import Options
from tracea_graph.errors import TraceaError
from tracea_graph.views import Report, render_report, report_page
from tracea_graph.views.graph import render_graph, render_programs

__all__ = ["main", "optimize_main"]

INTERRUPTED = 130


def optimize_main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``tracea-optimize``; returns the exit code."""
    args = optimize_parser().parse_args(argv)
    return _guarded(lambda: _optimize(args))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``tracea``; returns the exit code."""
    args = tool_parser().parse_args(argv)
    if args.command == "optimize":
        return _guarded(lambda: _optimize(args))
    return _guarded(lambda: _inspect(args))


def _guarded(run: Callable[[], int]) -> int:
    """Turn deliberate errors into one line on stderr and their exit code."""
    stderr = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        return run()
    except TraceaError as error:
        stderr.print(f"error: {error}", markup=False)
        return error.exit_code
    except KeyboardInterrupt:
        stderr.print("interrupted: nothing was written, what was compiled stays cached")
        return INTERRUPTED


def _optimize(args: argparse.Namespace) -> int:
    console = Console(quiet=args.quiet, highlight=False)
    progress = Console(stderr=True, quiet=args.quiet or args.json, highlight=False)
    options = options_of(args)
    for model in args.models:
        if options.until is not None:
            _print_stage(console, model, options, options.until)
            continue
        with progress.status(f"reading {escape(model.name)}") as status:
            report = api.optimize(
                model,
                options,
                lambda text: status.update(escape(text)),  # noqa: B023  (used within the loop)
                several=len(args.models) > 1,
            )
        _print_report(console, report, args)
    return 0


def _print_report(console: Console, report: Report, args: argparse.Namespace) -> None:
    if args.json:
        console.print(report.to_json(), markup=False, soft_wrap=True, end="")
    else:
        console.print(render_report(report, args.verbose))
    if args.report:
        Path(args.report).write_text(report_page(report), encoding="utf-8")


def _print_stage(console: Console, model: Path, options: Options, until: str) -> None:
    made = api.stages(model, until, options)
    if made.sources:
        for source in made.sources:
            console.print(f"{source.symbol}: {source.text.count(chr(10))} lines", markup=False)
    elif made.programs:
        console.print(render_programs(made.programs))
    else:
        console.print(render_graph(made.graph, {}))


def _inspect(args: argparse.Namespace) -> int:
    graph = api.load(args.model, fused=args.fused)
    Console(highlight=False).print(render_graph(graph, {}))
    return 0
