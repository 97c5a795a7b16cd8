"""The command line: what is accepted, and how it becomes Options."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import Any, NoReturn

from tracea_graph.api import STAGES
from tracea_graph.cli import values
from tracea_graph.cli.bench import add_bench
from tracea_graph.cli.cache import add_cache
from tracea_graph.cli.doctor import add_doctor
from tracea_graph.cli.inspect import add_explain, add_inspect
from tracea_graph.cli.settings import add_config
from tracea_graph.cli.sweep import add_sweep
from tracea_graph.cli.tune import add_tune
from tracea_graph.cli.verify import add_strip, add_verify
from tracea_graph.config import CHOICES, Options, Prune, Window
from tracea_graph.errors import UsageError
from tracea_graph.ops.weights import ALIGNED, BLOCKS

__all__ = ["optimize_parser", "options_of", "tool_parser", "wants_folder"]

_MOST_THREADS = 1024


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence; the usage is a ``--help`` away.

    Names stand in full, here and in files for ``--config``: what is an abbreviation today may
    mean two options tomorrow.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        whole = ", whose names stand in full" if message.startswith("unrecognized") else ""
        raise UsageError(f"{message}; {self.prog} --help lists all options{whole}")


def optimize_parser(prog: str = "tracea-optimize") -> argparse.ArgumentParser:
    """The parser of ``tracea-optimize``.  It raises UsageError for arguments it does not know."""
    parser = _Parser(
        prog=prog,
        description="Write a faster model that computes the same function in plain onnxruntime. "
        "A rewrite stays only if it was measured faster and within tolerance.",
        epilog="exit codes: 0 written (improved, or original kept), 2 usage or invalid model, "
        "3 verification failed, 4 build failed, 130, 129, 143 interrupted",
    )
    _add_optimize(parser)
    return parser


def _add_optimize(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="OUT.onnx or a folder (default: MODEL.tracea.onnx)"
    )
    _add_measuring(parser)
    _add_rewriting(parser)
    _add_locking(parser)
    _add_writing(parser)
    _add_printing(parser)


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("measuring").add_argument
    add(
        "--effort", choices=CHOICES["effort"], default="default",
        help="quick: judge all rewrites together; thorough: search for better blocking too",
    )  # fmt: skip
    add("--threads", metavar="N[,M]", help="thread counts to time (default: 1 and all cores)")
    add(
        "--shape", action="append", default=[], metavar="NAME=N[,NAME=N]",
        help="sizes of symbolic dimensions to time with; may be repeated",
    )  # fmt: skip
    add(
        "--data", type=Path, metavar="FILE.npz",
        help="real inputs to verify and time with (of many, three are timed); or a folder with a "
        "NAME.npz for NAME.onnx",
    )  # fmt: skip
    add(
        "--holdout", type=Path, metavar="FILE.npz",
        help="inputs to measure --low-rank and --prune with (default: every fifth of --data)",
    )  # fmt: skip
    add(
        "--metric", default="", metavar="FILE.py:FUNC",
        help="FUNC(outputs, originals) is the error --max-error limits, for --low-rank, --prune",
    )  # fmt: skip
    add(
        "--budget", type=values.seconds, default=Options.budget, metavar="SECONDS",
        help="longest time to plan, verify and measure, such as 90, 90s or 5m: what is not "
        "finished by then is left out (default: 180)",
    )  # fmt: skip
    add("--no-verify", action="store_true", help="do not compare outputs with the original's")
    add("--max-error", type=float, metavar="EPS", help="accepted error, as a share of max|y|")
    add("--rtol", type=float, metavar="X", help="accepted relative error, element by element")
    add("--atol", type=float, metavar="X", help="accepted absolute error, element by element")
    add("--seed", type=int, default=0, metavar="N", help="seed of the synthesised inputs")
    add(
        "--storage", default="", metavar="URL",
        help="share tuning studies: postgresql://, mysql://, sqlite:/// or grpc:// (optuna's)",
    )  # fmt: skip
    add_config(add)


def _add_rewriting(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("rewriting").add_argument
    add(
        "--keep", choices=CHOICES["keep"], default="faster",
        help="faster: what was measured faster; legal: all that passes its checks, nothing timed",
    )  # fmt: skip
    add(
        "--precision", choices=CHOICES["precision"], default="fp32",
        help="bf16: products and convolutions in bf16, sums in fp32, products in int16 where that "
        "is too coarse; bf16-weights: weights only; bf16x2: both of sums of two numbers in "
        "bf16, on matrix tiles; int16: products in scaled 16-bit integers",
    )  # fmt: skip
    add(
        "--window", action="append", default=[], metavar="[A-B:]N[+G]",
        help="attention sees N keys a query, and the first G; in layers A to B, or all",
    )  # fmt: skip
    add(
        "--low-rank", type=float, metavar="EPS",
        help="two factors for a matrix, where its product's own relative error is at most EPS",
    )  # fmt: skip
    add(
        "--prune", metavar="SPEC",
        help="zeros in matrices: 0.6, 2:4 or block:16x4:0.7 (columns x rows of the block); "
        "channels:0.5 for up to half of the channels between two products",
    )  # fmt: skip
    add("--only", action="append", default=[], metavar="RULE", help="use this rule; repeatable")
    add("--skip", action="append", default=[], metavar="RULE", help="not this rule; repeatable")
    add(
        "--freeze-initializers", action="store_true",
        help="make constants of initializers that inputs may override; those inputs go",
    )  # fmt: skip
    add("--no-custom-ops", action="store_true", help="plain ONNX only, no library")
    add("--target", default="host", help="host, cpu:scalar, cpu:avx2 or cpu:avx512")


def _add_locking(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("locking").add_argument
    add("--save-lock", type=Path, metavar="PLAN.json", help="write all decisions to this file")
    add(
        "--fresh", action="store_true",
        help="tune and time again, whatever an equal earlier run decided",
    )  # fmt: skip
    add(
        "--lock", type=Path, metavar="PLAN.json",
        help="apply the decisions of this file: nothing is tuned or timed, outputs are verified",
    )  # fmt: skip


def _add_writing(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("writing").add_argument
    add("--require-library", action="store_true", help="no bodies: loading needs the library")
    add("--plain-weights", action="store_true", help="keep weights as the original has them")
    add("--single-file", action="store_true", help="keep all weights inside the .onnx")
    add("--report", type=Path, metavar="FILE.html", help="write the report as a page")
    add("--keep-sources", type=Path, metavar="DIR", help="write the generated sources here")
    add("--until", choices=STAGES, help="stop after this stage and show its result")
    add(
        "--cache", type=Path, metavar="DIR",
        help="where compiled kernels are kept (default: ~/.cache/tracea-graph)",
    )  # fmt: skip


def _add_printing(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("printing").add_argument
    add("--json", action="store_true", help="print the report as JSON, a list for several models")
    add("--explain", action="store_true", help="say what became of every operator, and why")
    add("-q", "--quiet", action="store_true", help="print errors only")
    add("-v", "--verbose", action="count", default=0, help="print reasons, rules and near misses")


def tool_parser() -> argparse.ArgumentParser:
    """The parser of ``tracea``: one subcommand each."""
    parser = _Parser(prog="tracea", description="Optimize and inspect ONNX models.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    optimize = commands.add_parser("optimize", help="write a faster model")
    _add_optimize(optimize)
    sweep = commands.add_parser(
        "sweep", conflict_handler="resolve", help="one result per accepted error",
        description="Optimize once per --max-error with smaller matrices; show what each buys.",
    )  # fmt: skip
    _add_optimize(sweep)
    add_sweep(sweep)
    add_inspect(commands)
    add_explain(commands)
    add_bench(commands)
    add_verify(commands)
    add_strip(commands)
    add_doctor(commands)
    add_tune(commands)
    add_cache(commands)
    return parser


def wants_folder(args: argparse.Namespace) -> bool:
    """True if ``-o`` can only be a folder: it ends like one, or serves several models."""
    named = args.output is not None and args.output.endswith(os.sep)
    return bool(named or len(args.models) > 1)


def options_of(args: argparse.Namespace) -> Options:
    """Options from parsed arguments.  Raises UsageError for values that make no sense."""
    if args.require_library and args.no_custom_ops:
        raise UsageError("--require-library and --no-custom-ops contradict each other")
    if len(args.models) > 1 and (args.lock or args.save_lock):
        raise UsageError("--lock and --save-lock are about one model")
    return Options(
        output=None if args.output is None else Path(args.output),
        target=args.target,
        threads=_threads(args.threads),
        shapes=tuple(map(_shape, args.shape)),
        keep=args.keep,
        only=tuple(args.only),
        skip=tuple(args.skip),
        budget=args.budget,
        effort=args.effort,
        verify=not args.no_verify,
        custom_ops=not args.no_custom_ops,
        require_library=args.require_library,
        plain_weights=args.plain_weights,
        freeze_initializers=args.freeze_initializers,
        single_file=args.single_file,
        max_error=args.max_error,
        rtol=args.rtol,
        atol=args.atol,
        data=args.data,
        until=args.until,
        keep_sources=args.keep_sources,
        cache=args.cache,
        seed=args.seed,
        precision=args.precision,
        lock=args.lock,
        fresh=args.fresh,
        save_lock=args.save_lock,
        storage=args.storage,
        patterns=args.patterns,
        windows=tuple(map(_window, args.window)),
        holdout=args.holdout,
        metric=args.metric,
        low_rank=args.low_rank,
        prune=None if args.prune is None else _prune(args.prune),
    )


def _threads(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", text):
        raise UsageError(f"--threads takes numbers such as 1 or 1,4, not {text!r}")
    counts = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    if not 1 <= min(counts) <= max(counts) <= _MOST_THREADS:
        raise UsageError(f"--threads must be 1 to {_MOST_THREADS}, not {text!r}")
    return counts


def _window(text: str) -> Window:
    """``256``, ``256+1`` or ``0-5:256``.  Raises UsageError."""
    form = r"(?:(\d{1,5})(?:-(\d{1,5}))?:)?([1-9]\d{0,8})(?:\+(\d{1,9}))?"
    if not (found := re.fullmatch(form, text)):
        raise UsageError(f"--window takes N, N+G or A-B:N+G, not {text!r}")
    first, last, keys, everywhere = found.groups()
    layers = None if first is None else (int(first), int(last or first) + 1)
    if layers and layers[0] >= layers[1]:
        raise UsageError(f"--window {text!r} names no layer: {first} is above {last}")
    return Window(int(keys), int(everywhere or 0), layers)


def _prune(text: str) -> Prune:
    """``0.6``, ``2:4``, ``block:16x4:0.7`` or ``channels:0.5``.  Raises UsageError."""
    form = r"(?:(?:block:(\d{1,3})x(\d{1,3}):|(channels):)?(0?\.\d{1,6})|([1-9]\d?):([1-9]\d?))"
    if not (found := re.fullmatch(form, text)):
        raise UsageError(f"--prune takes 0.6, 2:4, block:16x4:0.7 or channels:0.5, not {text!r}")
    columns, steps, channels, share, stay, group = found.groups()
    if group:
        if int(stay) >= int(group):
            raise UsageError(f"--prune {text} leaves all numbers: use fewer than {group}")
        return Prune(1 - int(stay) / int(group), group=int(group))
    if not 0 < float(share) < 1:
        raise UsageError(f"--prune takes a share of zeros between 0 and 1, not {text!r}")
    if columns is None:
        return Prune(float(share), channels=bool(channels))
    if int(columns) != ALIGNED or int(steps) not in BLOCKS:
        raise UsageError(
            f"--prune takes blocks of {ALIGNED} columns and {', '.join(map(str, BLOCKS))} rows, "
            f"such as block:16x4:{share}, not {text!r}"
        )
    return Prune(float(share), block=(int(columns), int(steps)))


def _shape(text: str) -> dict[str, int]:
    """``batch=1,seq=128`` as a dict.  Raises UsageError."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.rpartition("=")
        if not name or not re.fullmatch(r"[0-9]{1,9}", size):
            raise UsageError(f"--shape takes NAME=N[,NAME=N], not {text!r}")
        if int(size) < 1:
            raise UsageError(f"--shape must be at least 1, not {part!r}")
        sizes[name] = int(size)
    return sizes
