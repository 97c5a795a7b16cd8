"""``tracea verify`` and ``tracea strip``: is a result right, and how to get rid of its library."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from tracea_graph.cli.flags import add_flags, made_options
from tracea_graph.commands.retune import strip
from tracea_graph.commands.verify import verify_models
from tracea_graph.errors import VerifyError
from tracea_graph.options import values
from tracea_graph.pipeline.output import check_file
from tracea_graph.views.verify import comparison_json, render_comparison

__all__ = ["add_strip", "add_verify", "run_strip", "run_verify"]


def add_verify(commands: Any) -> None:
    """Add the subcommand to what ``add_subparsers`` returned."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "verify",
        help="compare what two models compute",
        description="Run two models on the same inputs, ONNX Runtime's optimizations off and on, "
        "and compare every output. The first is the reference; neither need be a result of this "
        "tool.",
        epilog="exit codes: 0 equal within tolerance, 2 usage or invalid model, 3 not equal, or "
        "no input could be found that tells",
    )
    add = parser.add_argument
    add("original", type=Path, metavar="ORIGINAL.onnx")
    add("candidate", type=Path, metavar="OTHER.onnx")
    add(
        "--library", type=Path, metavar="FILE.so",
        help="custom-op library of OTHER (default: the one beside it)",
    )  # fmt: skip
    add(
        "--tolerance", type=_tolerance, action="append", default=[], metavar="OUTPUT=EPS",
        help="accepted error of one output, as a share of its max|y|; may be repeated",
    )  # fmt: skip
    add_flags(parser, "verify")


def add_strip(commands: Any) -> None:
    """Add the subcommand to what ``add_subparsers`` returned."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "strip",
        help="turn a result back into plain ONNX",
        description="Write a result of tracea-optimize with the plain operators its custom ones "
        "stand for in their place: no library, no functions.",
    )
    parser.add_argument("model", type=Path, metavar="RESULT.onnx")
    add_flags(parser, "strip")


def run_verify(args: argparse.Namespace, console: Console) -> int:
    """Compare and print; the exit code."""
    options = made_options(args)
    found = verify_models(
        args.original, args.candidate, options, args.library, dict(args.tolerance)
    )
    shown = comparison_json(found) if args.json else render_comparison(found)
    console.print(shown, markup=False, soft_wrap=args.json)
    return 0 if found.verification.status == "passed" else VerifyError.exit_code


def run_strip(args: argparse.Namespace, console: Console) -> int:
    """Strip and say what was written; the exit code."""
    output = Path(args.output)
    check_file(output, "--output", [args.model])
    written = strip(args.model, output, args.single_file)
    for path in filter(None, (written.model, written.data)):
        console.print(f"wrote {path}", markup=False, soft_wrap=True)
    return 0


def _tolerance(text: str) -> tuple[str, float]:
    name, _, number = text.rpartition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not OUTPUT=EPS")
    return name, values.share(number)
