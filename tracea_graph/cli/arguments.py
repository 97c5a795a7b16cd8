"""The command line: what is accepted, and how it becomes Options."""

from __future__ import annotations

import argparse
from pathlib import Path

from tracea_graph.api import STAGES
from tracea_graph.config import Options
from tracea_graph.errors import UsageError

__all__ = ["optimize_parser", "options_of", "tool_parser"]



def optimize_parser(prog: str = "tracea-optimize") -> argparse.ArgumentParser:
    """The parser of ``tracea-optimize``."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Write a faster model that computes the same function in plain onnxruntime. "
        "A rewrite stays only if it was measured faster and within tolerance.",
        epilog="exit codes: 0 written (improved, or original kept), 2 usage or invalid model, "
        "3 verification failed, 4 build failed, 130 interrupted",
    )
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    parser.add_argument(
        "-o", "--output", type=Path, help="OUT.onnx, or a folder (default: MODEL.tracea.onnx)"
    )
    _add_measuring(parser)
    _add_rewriting(parser)
    _add_writing(parser)
    _add_printing(parser)
    return parser


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("measuring")
    group.add_argument("--threads", metavar="N[,M]", help="thread counts to time (default: 1 and all)")
    group.add_argument(
        "--shape", action="append", default=[], metavar="NAME=N[,NAME=N]",
        help="sizes of symbolic dimensions to time; may be repeated",
    )  # fmt: skip
    group.add_argument("--data", type=Path, metavar="FILE.npz", help="real inputs to verify and time with")
    group.add_argument("--budget", type=float, default=60.0, metavar="SECONDS", help="longest time to measure")
    group.add_argument("--no-verify", action="store_true", help="do not compare outputs with the original's")
    group.add_argument("--max-error", type=float, metavar="EPS", help="accepted error, share of max|y|")
    group.add_argument("--rtol", type=float, help="accepted relative error, element by element")
    group.add_argument("--atol", type=float, help="accepted absolute error, element by element")
    group.add_argument("--seed", type=int, default=0, help="of the synthesised inputs")


def _add_rewriting(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("rewriting")
    group.add_argument(
        "--keep", choices=("faster", "legal"), default="faster",
        help="faster: what was measured faster; legal: all that passes its checks, nothing timed",
    )  # fmt: skip
    group.add_argument("--only", action="append", default=[], metavar="RULE", help="use these rules only")
    group.add_argument("--skip", action="append", default=[], metavar="RULE", help="never use these rules")
    group.add_argument("--no-custom-ops", action="store_true", help="plain ONNX only, no library")
    group.add_argument("--target", default="host", help="host, cpu:scalar, cpu:avx2 or cpu:avx512")


def _add_writing(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("writing")
    group.add_argument(
        "--require-library", action="store_true", help="write no bodies: loading needs the library"
    )
    group.add_argument("--plain-weights", action="store_true", help="keep weights as the original has them")
    group.add_argument("--single-file", action="store_true", help="keep all weights inside the .onnx")
    group.add_argument("--report", type=Path, metavar="FILE.html", help="write the report as a page")
    group.add_argument("--keep-sources", type=Path, metavar="DIR", help="write the generated sources here")
    group.add_argument("--until", choices=STAGES, help="stop after this stage and print its result")
    group.add_argument("--cache", type=Path, metavar="DIR", help="compiled kernels (default: ~/.cache/tracea-graph)")


def _add_printing(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("printing")
    group.add_argument("--json", action="store_true", help="print the report as JSON")
    group.add_argument("-q", "--quiet", action="store_true", help="print errors only")
    group.add_argument("-v", "--verbose", action="count", default=0, help="print rules and near misses too")


def tool_parser() -> argparse.ArgumentParser:
    """The parser of ``tracea``: one subcommand each."""
    parser = argparse.ArgumentParser(prog="tracea", description="Optimize and inspect ONNX models.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser(
        "optimize", help="write a faster model", parents=[optimize_parser()], add_help=False
    )
    inspect = commands.add_parser("inspect", help="show a model's region graph")
    inspect.add_argument("model", type=Path, metavar="MODEL.onnx")
    inspect.add_argument("--fused", action="store_true", help="after the passes, not before")
    return parser


def options_of(args: argparse.Namespace) -> Options:
    """Options from parsed arguments.  Raises UsageError for values that make no sense."""
    if args.budget <= 0:
        raise UsageError(f"--budget must be above 0 seconds, not {args.budget:g}")
    if args.require_library and args.no_custom_ops:
        raise UsageError("--require-library and --no-custom-ops contradict each other")
    return Options(
        output=args.output,
        target=args.target,
        threads=_threads(args.threads),
        shapes=tuple(map(_shape, args.shape)),
        keep=args.keep,
        only=tuple(args.only),
        skip=tuple(args.skip),
        budget=args.budget,
        verify=not args.no_verify,
        custom_ops=not args.no_custom_ops,
        require_library=args.require_library,
        plain_weights=args.plain_weights,
        single_file=args.single_file,
        max_error=args.max_error,
        rtol=args.rtol,
        atol=args.atol,
        data=args.data,
        until=args.until,
        keep_sources=args.keep_sources,
        cache=args.cache,
        seed=args.seed,
    )


def _threads(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--threads takes numbers such as 1 or 1,4, not {text!r}") from None
    if any(count < 1 for count in counts):
        raise UsageError(f"--threads must be at least 1, not {text!r}")
    return counts


def _shape(text: str) -> dict[str, int]:
    """``batch=1,seq=128`` as a dict.  Raises UsageError."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, size = part.rpartition("=")
        if not equals or not name or not size.isdigit():
            raise UsageError(f"--shape takes NAME=N[,NAME=N], not {text!r}")
        sizes[name] = int(size)
    return sizes
