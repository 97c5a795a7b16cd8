"""``tracea inspect`` and ``tracea explain``: what a model is, and why it became what it became."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from tracea_graph import api
from tracea_graph.cli.flags import add_flags, made_options
from tracea_graph.commands.inspect import explain
from tracea_graph.pipeline.output import check_file, write_text
from tracea_graph.views import render_graph
from tracea_graph.views.explain import render_explanation, render_node
from tracea_graph.views.ttg import graph_page

__all__ = ["add_explain", "add_inspect", "run_explain", "run_inspect"]


def add_inspect(commands: Any) -> None:
    """Add the subcommand to what ``add_subparsers`` returned."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "inspect",
        help="show a model's region graph",
        description="Show a model's region graph as a table, a page to click through, JSON or "
        "Graphviz.",
    )
    parser.add_argument("model", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--fused", action="store_true", help="after the passes, not before")
    add_flags(parser, "inspect")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page")
    parser.add_argument("--dot", action="store_true", help="print Graphviz text")


def add_explain(commands: Any) -> None:
    """Add the subcommand to what ``add_subparsers`` returned."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "explain",
        help="say what was fused, and what was not and why",
        description="Run the passes, measure nothing, and say of every operator what became of "
        "it, by which rule, and which rules nearly applied. Measured gains come from the report "
        "of an earlier run.",
    )
    parser.add_argument("model", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--node", default="", metavar="NAME", help="one operator or value")
    parser.add_argument(
        "--result", type=Path, metavar="FILE.json",
        help="report or plan lock with measured gains (default: MODEL.tracea.json if it is there)",
    )  # fmt: skip
    add_flags(parser, "explain")


def run_inspect(args: argparse.Namespace, console: Console) -> int:
    """Show the graph; the exit code."""
    options = made_options(args)
    if args.html is not None:
        check_file(args.html, "--html", [args.model])
    made = api.stages(args.model, "passes" if args.fused else "import", options)
    graph = made.graph
    if args.html is not None:
        write_text(args.html, graph_page(graph, made.imported if args.fused else None))
        console.print(f"wrote {args.html}", markup=False, soft_wrap=True)
    elif args.dot or args.json:
        sys.stdout.write(graph.to_dot() if args.dot else graph.to_json() + "\n")
    else:
        console.print(render_graph(graph))
    return 0


def run_explain(args: argparse.Namespace, console: Console) -> int:
    """Tell; the exit code."""
    told = explain(args.model, made_options(args), args.node, args.result)
    if args.json:
        sys.stdout.write(told.to_json() + "\n")
    else:
        console.print(render_node(told, args.node) if args.node else render_explanation(told))
    return 0
