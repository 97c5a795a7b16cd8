"""``tracea kernels``: build stand-alone libraries of kernels."""

from __future__ import annotations

import argparse
import json

from rich.console import Console

from tracea_graph.commands.kernels import build_kernels, known_ops
from tracea_graph.target import HOST, read_environment

__all__ = ["run_kernels"]


def run_kernels(args: argparse.Namespace, console: Console) -> int:
    """Run one action and return the exit code.  Raises UsageError and BuildError."""
    return _build(args, console)


def _build(args: argparse.Namespace, console: Console) -> int:
    target = args.target or HOST
    ops = tuple(filter(None, args.ops.split(","))) if args.ops else known_ops(target)
    environment = read_environment(args.cache)
    made = build_kernels(ops, args.output, target=target, environment=environment)
    facts = {
        "library": str(made.path), "include": str(made.include), "ops": made.ops,
        "levels": made.levels, "seconds": round(made.seconds, 2),
    }  # fmt: skip
    shown = (
        json.dumps(facts, indent=1)
        if args.json
        else f"{made.path}: {', '.join(made.ops)} for {', '.join(made.levels)}\n"
        f"headers in {made.include}, CMake package in {made.path.parent / 'cmake' / 'tracea'}"
    )
    console.print(shown, markup=False, soft_wrap=True)
    return 0
