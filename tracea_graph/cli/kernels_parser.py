"""Parsers of ``tracea kernels``, ``metrics`` and ``repro``; their code is loaded later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracea_graph.cli.option_flags import add_flags
from tracea_graph.cli.parser import Parser
from tracea_graph.target_names import TARGETS

__all__ = ["add_kernels", "add_metrics", "add_repro"]


def add_kernels(commands: Any) -> None:
    """Add ``tracea kernels`` and its actions to the result of ``add_subparsers``."""
    parser: Parser = commands.add_parser(
        "kernels",
        help="build kernels for other programs",
        usage="%(prog)s ACTION [options]",
        description="Use the kernels outside ONNX Runtime: a library with a C interface, headers "
        "for C and C++, and a CMake package.",
        examples=("tracea kernels build --ops gemm,conv2d -o build/tracea",),
    )
    actions = parser.add_subparsers(
        dest="action", required=True, metavar="ACTION", title="actions", prog="tracea kernels"
    )
    _add_build(actions)
    _add_list(actions)
    _add_show(actions)
    parser.add_general()


def _add_build(actions: Any) -> None:
    parser: Parser = actions.add_parser(
        "build",
        help="write a library, headers and a CMake package",
        usage="%(prog)s -o DIR [options]",
        description="Compile kernels into DIR/lib/libtracea_kernels.so, with DIR/include/tracea.h "
        "and tracea.hpp, and a package that CMake finds with DIR as a prefix.",
        examples=(
            "tracea kernels build -o build/tracea",
            "tracea kernels build --ops gemm,attention -o build/tracea",
            "tracea kernels build --target cuda:sm_90 -o build/tracea-gpu",
        ),
    )
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="where to write"
    )
    parser.add_argument(
        "--ops", metavar="OP[,OP]",
        help="gemm, conv2d and, on the CPU, attention, norm (default: all of them)",
    )  # fmt: skip
    _add_target(parser)
    add_flags(parser, "kernels build")
    parser.add_general()


def _add_list(actions: Any) -> None:
    parser: Parser = actions.add_parser(
        "list",
        help="list the kernel variants of a target",
        usage="%(prog)s [OP] [options]",
        description="List kernel variants: operation, element type, level and register tile.",
        examples=("tracea kernels list", "tracea kernels list gemm --json"),
    )
    parser.add_argument("op", nargs="?", help="list only this operation, such as gemm")
    _add_target(parser)
    add_flags(parser, "kernels list")
    parser.add_general()


def _add_show(actions: Any) -> None:
    parser: Parser = actions.add_parser(
        "show",
        help="show a kernel variant and the resources of its machine code",
        usage="%(prog)s NAME [options]",
        description="Compile a kernel variant, and show its tile, fragments, launch, epilogue, "
        "and the registers, stack and code bytes of its object (needs objdump), as YAML.",
        examples=("tracea kernels show f32_gemm_4x16__scalar",),
    )
    parser.add_argument("name", metavar="NAME", help="a name that tracea kernels list shows")
    _add_target(parser)
    add_flags(parser, "kernels show")
    parser.add_general()


def _add_target(parser: Parser) -> None:
    parser.add_argument(
        "--target", choices=TARGETS, metavar="TARGET", help="default: this machine"
    )


def add_repro(commands: Any) -> None:
    """Add ``tracea repro`` to the result of ``add_subparsers``."""
    parser: Parser = commands.add_parser(
        "repro",
        help="pack a model and its options so that others can repeat a run",
        usage="%(prog)s MODEL.onnx [options] [-- OPTIONS OF tracea-optimize]",
        description="Optimize a model, and pack what somebody else needs to repeat the run: the "
        "graph, options, decisions, generated sources, facts about this machine, and a script. "
        "Weights are left out: the packed model, and the run that is recorded, have random "
        "weights of equal mean and spread. Names of nodes and tensors are kept.",
        examples=(
            "tracea repro model.onnx -- --precision bf16 --shape batch=4",
            "tracea repro model.onnx --weights -o with-weights.zip",
        ),
    )
    parser.add_argument("model", type=Path, metavar="MODEL.onnx")
    parser.add_argument(
        "--options", default="", metavar="WORDS", help="the options after --, as one text"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE.zip", help="default: MODEL.repro.zip"
    )
    parser.add_argument(
        "--weights", action="store_true",
        help="pack the weights of the model, and the files of --data and --holdout",
    )  # fmt: skip
    add_flags(parser, "repro")
    parser.add_general()


def add_metrics(commands: Any) -> None:
    """Add ``tracea metrics`` to the result of ``add_subparsers``."""
    parser: Parser = commands.add_parser(
        "metrics",
        help="summarize a profile of runs in production",
        usage="%(prog)s PROFILE [MODEL.onnx] [options]",
        description="Read the profile that a result wrote to the file named by TRACEA_PROFILE, "
        "and print its metrics as Prometheus text. Nothing leaves this machine.",
        examples=("tracea metrics runs.txt model.tracea.onnx --csv calls.csv --trace trace.json",),
    )
    add = parser.add_argument
    add("profile", type=Path, metavar="PROFILE", help="the file that was named by TRACEA_PROFILE")
    add(
        "model", type=Path, nargs="?", metavar="MODEL.onnx",
        help="the result that ran, to name its kernels and count their FLOPs and bytes",
    )  # fmt: skip
    add("--csv", type=Path, metavar="FILE", help="write p50, p95, p99 and rates of every call")
    add("--jsonl", type=Path, metavar="FILE", help="write what --csv writes, as JSON lines")
    add("--trace", type=Path, metavar="FILE.json", help="write a timeline for Perfetto")
    parser.add_general()
