"""Command-line parsers, and the conversion of parsed arguments to Options.

Parsers are built from option records; no numeric library is loaded for them.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from tracea_graph.cli.kernels_parser import add_kernels, add_metrics, add_repro
from tracea_graph.cli.option_flags import OPTIMIZE, add_flags, options_from_flags
from tracea_graph.cli.parser import Parser
from tracea_graph.cli.subcommands import (
    add_bench,
    add_cache,
    add_doctor,
    add_explain,
    add_inspect,
    add_strip,
    add_sweep,
    add_tune,
    add_verify,
)
from tracea_graph.errors import UsageError
from tracea_graph.options import Options

__all__ = [
    "join_subcommands",
    "optimize_parser",
    "options_from_args",
    "output_is_folder",
    "tool_parser",
]

_EXIT_CODES = (
    "exit codes: 0 written (improved, or original kept), 1 bug or out of memory, 2 usage or "
    "invalid model, 3 verification failed, 4 build failed, 129, 130 or 143 interrupted"
)


def optimize_parser(prog: str = "tracea-optimize") -> argparse.ArgumentParser:
    """Build the parser of ``tracea-optimize``.  It raises UsageError for unknown arguments."""
    parser = Parser(
        prog=prog,
        usage="%(prog)s MODEL.onnx... [options]",
        description="Write a faster model that computes the same function in plain onnxruntime. "
        "A rewrite is kept only if it was measured faster and within tolerance.",
        epilog=_EXIT_CODES,
        examples=_examples(prog),
    )
    _add_optimize(parser)
    parser.add_general()
    return parser


def _examples(prog: str) -> Sequence[str]:
    return (
        f"{prog} model.onnx",
        f"{prog} model.onnx --shape batch=1,sequence=128 --threads 4",
        f"{prog} model.onnx --precision bf16 --max-error 0.01 --data inputs.npz",
        f"{prog} model.onnx --target cuda --precision fp16",
    )


def _add_optimize(parser: Parser) -> None:
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    add_flags(parser, OPTIMIZE)


def tool_parser() -> argparse.ArgumentParser:
    """Build the parser of ``tracea``, with one subparser for each subcommand."""
    parser = Parser(
        prog="tracea",
        usage="%(prog)s COMMAND ... [options]",
        description="Optimize and inspect ONNX models.",
        epilog="tracea COMMAND --help shows the options of a command",
        examples=("tracea optimize model.onnx", "tracea bench model.onnx", "tracea doctor"),
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", title="commands", prog="tracea"
    )
    optimize = commands.add_parser(
        "optimize", help="write a faster model",
        usage="%(prog)s MODEL.onnx... [options]",
        description="Write a faster model; tracea-optimize is the same command.",
        epilog=_EXIT_CODES,
        examples=_examples("tracea optimize"),
    )  # fmt: skip
    _add_optimize(optimize)
    optimize.add_general()
    sweep = commands.add_parser(
        "sweep", conflict_handler="resolve", help="optimize for several accepted errors",
        usage="%(prog)s MODEL.onnx --max-error EPS,EPS... [options]",
        description="Optimize once per --max-error with smaller matrices, and compare the "
        "speedups.",
        examples=(
            "tracea sweep model.onnx --max-error 1e-3,1e-2 --data inputs/ --svg pareto.svg",
        ),
    )  # fmt: skip
    _add_optimize(sweep)
    add_sweep(sweep)
    sweep.add_general()
    for add in (add_inspect, add_explain, add_bench, add_verify):
        add(commands)
    for add in (add_strip, add_doctor, add_tune, add_cache, add_kernels, add_metrics, add_repro):
        add(commands)
    parser.add_general()
    return parser


def join_subcommands(words: Sequence[str]) -> list[str]:
    """Join words that argparse is to treat as one.

    These are ``tune worker`` and ``tune report``, and all words after ``--`` of ``repro``, which
    become the value of one option.
    """
    if len(words) > 1 and words[0] == "tune" and words[1] in ("worker", "report"):
        return [f"tune {words[1]}", *words[2:]]
    if words[:1] == ["repro"] and "--" in words:
        at = list(words).index("--")
        return [*words[:at], f"--options={shlex.join(words[at + 1 :])}"]
    return list(words)


def output_is_folder(args: argparse.Namespace) -> bool:
    """Whether ``-o`` must be a folder: it looks like one, or there are several models."""
    named = args.output is not None and args.output.endswith(os.sep)
    return bool(named or len(args.models) > 1)


def options_from_args(args: argparse.Namespace) -> Options:
    """Convert parsed arguments to Options.  Raises UsageError for invalid values."""
    if len(args.models) > 1 and (args.lock or args.save_lock):
        raise UsageError("--lock and --save-lock take one model")
    return options_from_flags(args)
