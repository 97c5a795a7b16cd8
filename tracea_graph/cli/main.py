"""``tracea-optimize`` and ``tracea``: parse, call the API, print."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from tracea_graph import api
from tracea_graph.cli.arguments import (
    inspect_parser,
    optimize_parser,
    options_of,
    parse_shape,
)
from tracea_graph.errors import TraceaError
from tracea_graph.views import Report, render_report, report_page
from tracea_graph.views.graph import render_graph

__all__ = ["main", "optimize_main"]

INTERRUPTED = 130


def optimize_main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``tracea-optimize``; returns the exit code."""
    return _guarded(lambda: _optimize(optimize_parser().parse_args(argv)))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``tracea``; returns the exit code."""
    parser = argparse.ArgumentParser(prog="tracea", description="Optimize and inspect ONNX models.")
    parser.add_argument("command", choices=("optimize", "inspect"))
    args, rest = parser.parse_args((argv if argv is not None else sys.argv[1:])[:1]), None
    rest = (argv if argv is not None else sys.argv[1:])[1:]
    if args.command == "optimize":
        return _guarded(lambda: _optimize(optimize_parser("tracea optimize").parse_args(rest)))
    return _guarded(lambda: _inspect(inspect_parser().parse_args(rest)))


def _guarded(run: Callable[[], int]) -> int:
    """Turn deliberate errors into one line on stderr and their exit code."""
    try:
        return run()
    except TraceaError as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"error: {escape(str(error))}")
        return error.exit_code
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted")
        return INTERRUPTED


def _optimize(args: argparse.Namespace) -> int:
    console = Console(quiet=args.quiet, highlight=False)
    options = options_of(args)
    progress = Console(stderr=True, quiet=args.quiet or args.json, highlight=False)
    for model in args.models:
        with progress.status(f"reading {escape(model.name)}") as status:
            step = lambda text: status.update(escape(text))  # noqa: E731
            result = api.optimize(model, options, progress=step)
        if isinstance(result, str):
            console.print(result, markup=False)
            continue
        _show(result, args, console)
    return 0


def _show(report: Report, args: argparse.Namespace, console: Console) -> None:
    if args.json:
        console.print(report.to_json(), markup=False, soft_wrap=True, end="")
    else:
        console.print(render_report(report, args.verbose))
    if args.report:
        Path(args.report).write_text(report_page(report), encoding="utf-8")


def _inspect(args: argparse.Namespace) -> int:
    bindings: dict[str, int] = {}
    for text in args.shape:
        bindings |= parse_shape(text)
    graph = api.load(args.model, fused=args.fused)
    Console(highlight=False).print(render_graph(graph, bindings))
    return 0
