"""``tracea doctor``: what this machine can do, and which kernel a problem gets on it."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from tracea_graph.cli.flags import add_flags
from tracea_graph.doctor import Doctor
from tracea_graph.errors import UsageError
from tracea_graph.target import BACKENDS
from tracea_graph.version import runtime_conflict
from tracea_graph.views.doctor import decision_json, render_decision, render_health

__all__ = ["add_doctor", "run_doctor"]


def add_doctor(commands: Any) -> None:
    """Add the subcommand to what ``add_subparsers`` returned."""
    told = BACKENDS[0].diagnostics
    problems = told.problems if told else {}
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="examine this machine",
        description="Show what this machine can do (measured once, in under 5 s), or which kernel "
        "variant a problem gets on it and why.",
        epilog="sizes: " + "; ".join(f"{op} {','.join(sizes)}" for op, sizes in problems.items()),
    )
    parser.add_argument("op", nargs="?", help=f"one of {', '.join(problems)}; needs --shape")
    parser.add_argument("--shape", metavar="N[,N]", help="sizes of the problem, see below")
    parser.add_argument(
        "--dtype", help="f32 (default), bf16, f16, int16; what does not exist falls back"
    )
    parser.add_argument("--refresh", action="store_true", help="measure anew")
    add_flags(parser, "doctor")


def run_doctor(args: argparse.Namespace, console: Console) -> int:
    """Print the findings; the exit code.  Raises UsageError for impossible arguments."""
    doctor = Doctor(refresh=args.refresh)
    if args.op is None:
        if args.shape or args.dtype:
            raise UsageError("--shape and --dtype belong to an operation: tracea doctor gemm …")
        health = doctor.health()
        _show(console, health.to_json() if args.json else render_health(health))
        if (conflict := runtime_conflict()) and not args.json:
            _show(console, f"warning: {conflict}")
        return 0
    decision = doctor.plan_kernel(args.op, _shape(args.shape), args.dtype or "f32")
    _show(console, decision_json(decision) if args.json else render_decision(decision))
    return 0


def _show(console: Console, what: Any) -> None:
    console.print(what, markup=False, soft_wrap=isinstance(what, str))


def _shape(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in (text or "").split(",") if part)
    except ValueError:
        raise UsageError(f"--shape takes numbers such as 128,768,768, not {text!r}") from None
