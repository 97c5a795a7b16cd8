"""``tracea doctor``: show what this machine supports, and the kernel that a problem gets on it."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from tracea_graph.doctor import Doctor
from tracea_graph.errors import UsageError
from tracea_graph.version import runtime_conflict
from tracea_graph.views.doctor import decision_json, render_decision, render_health

__all__ = ["run_doctor"]


def run_doctor(args: argparse.Namespace, console: Console) -> int:
    """Print the findings and return the exit code.  Raises UsageError for invalid arguments."""
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
