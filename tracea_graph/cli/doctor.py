"""``tracea doctor``: show what this machine supports, and the kernel that a problem gets on it."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from tracea_graph.context import Context
from tracea_graph.errors import UsageError
from tracea_graph.health_check import Doctor
from tracea_graph.json_documents import to_json
from tracea_graph.target import HOST
from tracea_graph.version import runtime_conflict
from tracea_graph.views.doctor import render_health, render_kernel_choice

__all__ = ["run_doctor"]


def run_doctor(args: argparse.Namespace, console: Console) -> int:
    """Print the findings and return the exit code.  Raises UsageError for invalid arguments."""
    doctor = Doctor(refresh=args.refresh)
    if args.op is None:
        if args.shape or args.dtype or args.target:
            raise UsageError(
                "--shape, --dtype and --target need an operation, as in: tracea doctor gemm …"
            )
        health = doctor.health()
        _show(console, health.to_json() if args.json else render_health(health))
        if (conflict := runtime_conflict()) and not args.json:
            _show(console, f"warning: {conflict}")
        return 0
    plan = Context(args.target or HOST).plan_kernel(
        args.op, _shape(args.shape), args.dtype or "fp32"
    )
    _show(console, to_json(plan).rstrip() if args.json else render_kernel_choice(plan))
    return 0


def _show(console: Console, what: Any) -> None:
    console.print(what, markup=False, soft_wrap=isinstance(what, str))


def _shape(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        raise UsageError(f"--shape takes numbers such as 128,768,768, not {text!r}") from None
