"""``tracea inspect`` and ``tracea explain``: show a model's graph, and why it was rewritten."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from tracea_graph import api
from tracea_graph.cli.console import print_written_files
from tracea_graph.cli.option_flags import options_from_flags
from tracea_graph.commands.inspect import explain
from tracea_graph.errors import UsageError
from tracea_graph.pipeline.output_files import check_file, write_text
from tracea_graph.views import render_graph
from tracea_graph.views.explain import render_explanation, render_node
from tracea_graph.views.shape_check import render_shapes
from tracea_graph.views.ttg import graph_page

__all__ = ["run_explain", "run_inspect"]


def run_inspect(args: argparse.Namespace, console: Console) -> int:
    """Show the graph and return the exit code."""
    if args.check is not None:
        return _check(args, console)
    options = options_from_flags(args)
    if args.html is not None:
        check_file(args.html, "--html", [args.model])
    made = api.stage_results(args.model, "passes" if args.fused else "import", options)
    graph = made.graph
    if args.html is not None:
        write_text(args.html, graph_page(graph, made.imported if args.fused else None))
        print_written_files(console, args.html)
    elif args.dot or args.json:
        sys.stdout.write(graph.to_dot() if args.dot else graph.to_json() + "\n")
    else:
        console.print(render_graph(graph))
    return 0


def _check(args: argparse.Namespace, console: Console) -> int:
    """List shape contradictions; return 1 if there are any."""
    if args.fused or args.html or args.dot:
        raise UsageError("--check lists contradictions: it takes no --fused, --html or --dot")
    report = api.validate_shapes(args.model, args.check)
    if args.json:
        sys.stdout.write(report.to_json() + "\n")
    else:
        console.print(render_shapes(report))
    return int(not report.ok)


def run_explain(args: argparse.Namespace, console: Console) -> int:
    """Explain what became of every operator and return the exit code."""
    explanation = explain(args.model, options_from_flags(args), args.node, args.result)
    if args.json:
        sys.stdout.write(explanation.to_json() + "\n")
    else:
        console.print(
            render_node(explanation, args.node) if args.node else render_explanation(explanation)
        )
    return 0
