"""Parsers of ``tracea``'s subcommands; the code that runs them is loaded later."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tracea_graph.cli.option_flags import add_flags
from tracea_graph.cli.parser import Parser
from tracea_graph.options import TIMING, value_parsers
from tracea_graph.problem_descriptor import EPILOGUES, GRAMMAR, ProblemDescriptor
from tracea_graph.target_names import OPERATIONS, TARGETS

__all__ = [
    "add_bench", "add_cache", "add_doctor", "add_explain", "add_inspect", "add_strip", "add_sweep",
    "add_tune", "add_verify",
]  # fmt: skip

_MONTH = 30 * 86400.0


def add_inspect(commands: Any) -> None:
    """Add ``tracea inspect`` to the result of ``add_subparsers``."""
    parser: Parser = commands.add_parser(
        "inspect",
        help="show a model's region graph",
        usage="%(prog)s MODEL.onnx [options]",
        description="Show a model's region graph as a table, an interactive page, JSON or "
        "Graphviz text.",
        examples=(
            "tracea inspect model.onnx --fused --html graph.html",
            "tracea inspect model.onnx --check strict",
        ),
    )
    parser.add_argument("model", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--fused", action="store_true", help="show the graph after the passes")
    add_flags(parser, "inspect")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page")
    parser.add_argument("--dot", action="store_true", help="print Graphviz text")
    parser.add_argument(
        "--check", nargs="?", const="lenient", choices=("lenient", "strict"),
        help="list shape contradictions instead, and exit with 1 if there are any; strict: also "
        "list declarations that hold for some sizes only, and unknown ranks",
    )  # fmt: skip
    parser.add_general()


def add_explain(commands: Any) -> None:
    """Add ``tracea explain`` to the result of ``add_subparsers``."""
    parser: Parser = commands.add_parser(
        "explain",
        help="show what was fused, and what was not and why",
        usage="%(prog)s MODEL.onnx [options]",
        description="Run the passes without measuring, and show for every operator which rule "
        "rewrote it, and which rules nearly applied. Measured gains come from the report of an "
        "earlier run.",
        examples=(
            "tracea explain model.onnx",
            "tracea explain model.onnx --node /0/Softmax",
        ),
    )
    parser.add_argument("model", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--node", default="", metavar="NAME", help="only this operator or value")
    parser.add_argument(
        "--result", type=Path, metavar="FILE.json",
        help="report or plan lock with measured gains (default: MODEL.tracea.json, if it "
        "exists and is for the same target)",
    )  # fmt: skip
    add_flags(parser, "explain")
    parser.add_general()


def add_bench(commands: Any) -> None:
    """Add ``tracea bench`` to the result of ``add_subparsers``."""
    parser: Parser = commands.add_parser(
        "bench",
        help="compare the speed of models, or profile one",
        usage="%(prog)s MODEL.onnx... [options]",
        description="Time models against the first of them in ONNX Runtime with all "
        "optimizations, in interleaved runs in one process. The library beside a result is used; "
        "a single model is compared with NAME.tracea.onnx beside it.",
        examples=(
            "tracea bench model.onnx",
            "tracea bench model.tracea.onnx --profile --html profile.html",
            "tracea bench model.onnx --sessions 4",
            "tracea bench model.tracea.onnx --retune",
        ),
    )
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    groups = add_flags(parser, "bench")
    _add_timing(groups[TIMING])
    groups[TIMING].add_argument(
        "--sessions", type=value_parsers.parse_count, metavar="N",
        help="compare N concurrent sessions with one session of N times the threads: runs per "
        "second, and p50, p95 and p99 of their times",
    )  # fmt: skip
    group = parser.add_argument_group("profile")
    group.add_argument("--profile", action="store_true", help="profile one model, node by node")
    group.add_argument("--html", type=Path, metavar="FILE", help="all figures and the roofline")
    group.add_argument("--svg", type=Path, metavar="FILE", help="draw the roofline")
    group.add_argument("--png", type=Path, metavar="FILE", help="draw the roofline (matplotlib)")
    group.add_argument(
        "--timeline", type=Path, metavar="FILE.svg",
        help="draw the tasks of each thread in one run of the fused kernel that takes longest; on "
        "a GPU the blocks of each multiprocessor, for results optimized under TRACEA_TASK_TIMES=1",
    )  # fmt: skip
    groups["retune"].add_argument(
        "--retune", action="store_true",
        help="measure one result's kernels here and drop those that are not faster",
    )  # fmt: skip
    parser.add_general()


def _add_timing(group: Any) -> None:
    group.add_argument(
        "--pairs", type=value_parsers.parse_count, default=50, metavar="N",
        help="interleaved runs of each model (default: 50)",
    )  # fmt: skip
    group.add_argument(
        "--seconds", type=float, default=20.0, metavar="S",
        help="time limit of one comparison in seconds (default: 20)",
    )  # fmt: skip
    group.add_argument(
        "--baselines", type=value_parsers.parse_words, metavar="NAME[,NAME]",
        help="runtimes to compare with too: openvino-f32, openvino-bf16, or ort for none "
        "(default: all installed)",
    )  # fmt: skip


def add_verify(commands: Any) -> None:
    """Add ``tracea verify`` to the result of ``add_subparsers``."""
    parser: Parser = commands.add_parser(
        "verify",
        help="compare the outputs of two models",
        usage="%(prog)s ORIGINAL.onnx OTHER.onnx [options]",
        description="Run two models on the same inputs, with ONNX Runtime's optimizations off and "
        "on, and compare every output. The first is the reference; neither has to be a result of "
        "this tool.",
        epilog="exit codes: 0 equal within tolerance, 2 usage or invalid model, 3 not equal, or "
        "the outputs do not change with the inputs, so that errors may not show",
        examples=("tracea verify model.onnx model.tracea.onnx --data inputs.npz",),
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
    parser.add_general()


def _tolerance(text: str) -> tuple[str, float]:
    name, _, number = text.rpartition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not OUTPUT=EPS")
    return name, value_parsers.parse_share(number)


def add_strip(commands: Any) -> None:
    """Add ``tracea strip`` to the result of ``add_subparsers``."""
    parser: Parser = commands.add_parser(
        "strip",
        help="turn a result back into plain ONNX",
        usage="%(prog)s RESULT.onnx -o OUT.onnx [options]",
        description="Replace the custom ops of a result by the plain operators they were made of: "
        "the file that is written needs no library and has no functions.",
        examples=("tracea strip model.tracea.onnx -o plain.onnx",),
    )
    parser.add_argument("model", type=Path, metavar="RESULT.onnx")
    add_flags(parser, "strip")
    parser.add_general()


def add_doctor(commands: Any) -> None:
    """Add ``tracea doctor`` to the result of ``add_subparsers``."""
    parser: Parser = commands.add_parser(
        "doctor",
        help="examine this machine",
        usage="%(prog)s [OP] [options]",
        description="Show what this machine can do (measured once, in under 5 s), or which kernel "
        "variant a problem gets on a target and why.",
        epilog="sizes: " + "; ".join(f"{o.name} {','.join(o.sizes)}" for o in OPERATIONS.values()),
        examples=(
            "tracea doctor",
            "tracea doctor gemm --shape 128,768,3072 --dtype bf16",
            "tracea doctor flash_attention_2 --target cuda:sm_90",
        ),
    )
    parser.add_argument("op", nargs="?", help="an operation listed below")
    parser.add_argument("--shape", metavar="N[,N]", help="sizes of the operation, as listed below")
    parser.add_argument(
        "--dtype",
        help="fp32 (default), bf16, fp16, int16 …; if it has no kernels, another is used",
    )
    parser.add_argument(
        "--target", choices=TARGETS, metavar="TARGET", help="default: this machine"
    )
    parser.add_argument("--refresh", action="store_true", help="measure this machine again")
    add_flags(parser, "doctor")
    parser.add_general()


def add_sweep(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that only a sweep has, and ``--max-error``, which takes several errors."""
    parser.add_argument(
        "--max-error", required=True, type=_budgets, metavar="EPS[,EPS]",
        help="the errors to allow, such as 1e-3,3e-3,1e-2",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR",
        help="write MODEL.EPS.onnx for each error into a folder (default: beside the model)",
    )  # fmt: skip
    drawn = "draw error against time (needs lets-plot)"
    parser.add_argument("--svg", type=Path, metavar="FILE.svg", help=drawn)


def _budgets(text: str) -> tuple[float, ...]:
    """Parse ``1e-3,3e-3`` to distinct values in ascending order."""
    try:
        found = sorted({float(part) for part in text.split(",")})
    except ValueError:
        found = [0.0]
    if not 0 < found[0] <= found[-1] < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of errors above 0")
    return tuple(found)


def add_tune(commands: Any) -> None:
    """Add ``tracea tune`` and its two subcommands to the result of ``add_subparsers``."""
    models: Parser = commands.add_parser(
        "tune",
        help="search for better blocking of a model's matmuls",
        usage="%(prog)s [MODEL.onnx...] [options]",
        description="Measure which blocking is fastest here, within a time limit. Results go to "
        "the cache, where tracea-optimize finds them; nothing is measured twice, Ctrl-C keeps "
        "what was measured, and the next run continues.",
        epilog=f"problems: {GRAMMAR}; pad=-1 is half the kernel; an epilogue is one of "
        f"{', '.join(EPILOGUES)}",
        examples=(
            "tracea tune model.onnx --budget 5m",
            "tracea tune --problem gemm:128x768x3072 --precision bf16",
            "tracea tune --problem conv:1x64x56x56x64x3,stride=2,epilogue=relu",
        ),
    )
    models.add_argument("models", nargs="*", type=Path, metavar="MODEL.onnx")
    models.add_argument(
        "--problem", dest="problems", type=ProblemDescriptor.parse, action="append", default=[],
        metavar="KIND:SIZES", help="tune one problem without a model; may be repeated, see below",
    )  # fmt: skip
    add_flags(models, "tune")
    _add_lost(models)
    models.add_argument(
        "--save-config", type=Path, metavar="FILE.yaml",
        help="write options and results as a file for --config",
    )  # fmt: skip
    models.add_general()
    _add_worker(commands)
    _add_report(commands)


def _add_worker(commands: Any) -> None:
    parser: Parser = commands.add_parser(
        "tune worker",
        help="run tuning trials for other machines",
        usage="%(prog)s --storage URL [options]",
        description="Measure trials that other machines published at a storage, on this machine. "
        "A worker that is killed loses only its current trial.",
        examples=("tracea tune worker --storage postgresql://host/tuning",),
    )
    add_flags(parser, "tune worker")
    parser.add_argument(
        "--idle", type=value_parsers.parse_seconds, default=_MONTH, metavar="SECONDS",
        help="end after this time without work (default: wait for more)",
    )  # fmt: skip
    _add_lost(parser)
    parser.add_general()


def _add_report(commands: Any) -> None:
    parser: Parser = commands.add_parser(
        "tune report",
        help="show how a tuning run converged",
        usage="%(prog)s [RUN.jsonl] [options]",
        description="Read a run's telemetry, which never leaves this machine.",
        examples=("tracea tune report --svg convergence.svg",),
    )
    add = parser.add_argument
    add("run", nargs="?", type=Path, metavar="RUN.jsonl", help="default: the last run")
    add("--csv", type=Path, metavar="FILE.csv", help="write all rows as a table")
    add("--svg", type=Path, metavar="FILE.svg", help="draw the convergence (needs lets-plot)")
    add_flags(parser, "tune report")
    parser.add_general()


def _add_lost(parser: Parser) -> None:
    parser.add_argument(
        "--lost-after", type=value_parsers.parse_seconds, default=60.0, metavar="SECONDS",
        help="take over a shared trial that has been unfinished for this long (default: 60)",
    )  # fmt: skip


def add_cache(commands: Any) -> None:
    """Add ``tracea cache`` to the result of ``add_subparsers``."""
    parser: Parser = commands.add_parser(
        "cache",
        help="manage tuning results",
        usage="%(prog)s ACTION [options]",
        description="List, export, import or prune tuning results. A result is used where "
        "machine, compiler, versions, kernel sources, problem and thread counts are equal.",
        examples=("tracea cache ls",),
    )
    actions = parser.add_subparsers(
        dest="action", required=True, metavar="ACTION", title="actions", prog="tracea cache"
    )
    for name, what, operand in (
        ("ls", "list tuning results", ""),
        ("export", "write tuning results as JSON lines", " FILE.jsonl"),
        (
            "import",
            "add exported tuning results; finished results in the cache are kept",
            " FILE.jsonl",
        ),
        ("prune", "remove tuning results that this machine can no longer use", ""),
    ):
        action: Parser = actions.add_parser(
            name, help=what, description=f"{what[0].upper()}{what[1:]}.",
            usage=f"%(prog)s{operand} [options]",
            examples=(f"tracea cache {name}{operand and ' results.jsonl'}",),
        )  # fmt: skip
        add_flags(action, f"cache {name}")
        if operand:
            action.add_argument(
                "file", metavar="FILE.jsonl", help="a file, or - for standard output or input"
            )
        if name == "prune":
            _add_prune(action)
        action.add_general()
    parser.add_general()


def _add_prune(action: Parser) -> None:
    add = action.add_argument
    add("--older", type=float, metavar="DAYS", help="also remove older results")
    add("--unfinished", action="store_true", help="also remove unfinished results")
    add("--other-machines", action="store_true", help="also remove results of other machines")
    add("--all", action="store_true", help="remove everything")
