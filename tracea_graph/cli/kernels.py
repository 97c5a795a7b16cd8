"""``tracea kernels``: build stand-alone libraries of kernels, list and show kernels."""

from __future__ import annotations

import argparse
import json

from rich.console import Console

from tracea_graph.commands.build_kernel_library import (
    build_kernels,
    known_ops,
    list_kernels,
    show_kernel,
)
from tracea_graph.target import HOST, read_environment
from tracea_graph.views.terminal_tables import new_table

__all__ = ["run_kernels"]


def run_kernels(args: argparse.Namespace, console: Console) -> int:
    """Run one action and return the exit code.  Raises UsageError and BuildError."""
    if args.action == "list":
        return _list(args, console)
    return _show(args, console) if args.action == "show" else _build(args, console)


def _list(args: argparse.Namespace, console: Console) -> int:
    found = list_kernels(args.target or HOST, args.op)
    if args.json:
        text = json.dumps([one.to_json() for one in found], indent=1)
        console.print(text, markup=False, soft_wrap=True)
        return 0
    table = new_table("kernels")
    for name in ("name", "op", "type", "level", "tile", "epilogue"):
        table.add_column(name)
    for one in found:
        table.add_row(one.name, one.op, one.dtype, one.level, one.tile, one.epilogue)
    console.print(table)
    return 0


def _show(args: argparse.Namespace, console: Console) -> int:
    import yaml

    found = show_kernel(args.name, args.target or HOST, read_environment(args.cache))
    facts = json.loads(json.dumps(found.to_json()))  # lists in place of tuples
    text = json.dumps(facts, indent=1) if args.json else yaml.safe_dump(facts, sort_keys=False)
    console.print(text.rstrip(), markup=False, soft_wrap=True)
    return 0


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
