"""``tracea verify`` and ``tracea strip``: is a result right, and how to get rid of its library."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from tracea_graph.cli import values
from tracea_graph.config import Options
from tracea_graph.errors import VerifyError
from tracea_graph.pipeline.output import check_file
from tracea_graph.pipeline.stripping import strip
from tracea_graph.pipeline.verifying import verify_models
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
        "--shape", type=values.shape, action="append", default=[], metavar="NAME=N[,NAME=N]",
        help="sizes of symbolic dimensions; may be repeated",
    )  # fmt: skip
    add("--data", type=Path, metavar="FILE.npz", help="real inputs")
    add("--max-error", type=values.share, metavar="EPS", help="accepted error, share of max|y|")
    add("--rtol", type=values.share, metavar="X", help="accepted relative error of each element")
    add("--atol", type=values.share, metavar="X", help="accepted absolute error of each element")
    add(
        "--tolerance", type=_tolerance, action="append", default=[], metavar="OUTPUT=EPS",
        help="accepted error of one output, as a share of its max|y|; may be repeated",
    )  # fmt: skip
    add("--threads", type=values.threads, default=(), metavar="N", help="default: all cores")
    add("--seed", type=int, default=0, help="of the synthesised inputs")
    add("--json", action="store_true", help="print JSON")


def add_strip(commands: Any) -> None:
    """Add the subcommand to what ``add_subparsers`` returned."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "strip",
        help="turn a result back into plain ONNX",
        description="Write a result of tracea-optimize with the plain operators its custom ones "
        "stand for in their place: no library, no functions.",
    )
    parser.add_argument("model", type=Path, metavar="RESULT.onnx")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT.onnx")
    parser.add_argument("--single-file", action="store_true", help="keep all weights in it")


def run_verify(args: argparse.Namespace, console: Console) -> int:
    """Compare and print; the exit code."""
    options = Options(
        shapes=tuple(args.shape), data=args.data, max_error=args.max_error, rtol=args.rtol,
        atol=args.atol, threads=args.threads, seed=args.seed,
    )  # fmt: skip
    found = verify_models(
        args.original, args.candidate, options, args.library, dict(args.tolerance)
    )
    shown = comparison_json(found) if args.json else render_comparison(found)
    console.print(shown, markup=False, soft_wrap=args.json)
    return 0 if found.verification.status == "passed" else VerifyError.exit_code


def run_strip(args: argparse.Namespace, console: Console) -> int:
    """Strip and say what was written; the exit code."""
    check_file(args.output, "--output", [args.model])
    written = strip(args.model, args.output, args.single_file)
    for path in filter(None, (written.model, written.data)):
        console.print(f"wrote {path}", markup=False, soft_wrap=True)
    return 0


def _tolerance(text: str) -> tuple[str, float]:
    name, _, number = text.rpartition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not OUTPUT=EPS")
    return name, values.share(number)
