"""Choose when kernels of one row let the next kernel start: before they wait themselves, or after.

A kernel that starts early brings its first weights while those before it still run, but its blocks
hold registers and shared memory.  If each kernel lets the next one start before it waits, blocks
of many later kernels wait on the SMs, and the rest of the next ones find no place.  So only a
matmul behind a kernel without weights, such as attention, does so: that one leaves memory and half
of the SMs idle.

µs a token on an H100 (launches of ``tests.gpu.decoder``) by this rule, and if those matmuls
release after they wait, too: Llama-3.2-1B with 4 bits 480 and 481, Qwen3-0.6B 513 and 542,
Llama-3.2-1B in fp16 969 and 982.  If all release before they wait, Qwen3-0.6B takes 11 % longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.launch import Launch
from tracea_graph.kernels.program import Buffer, Call, Program

__all__ = ["early_releases", "with_releases"]

Choices = Sequence[tuple[Launch, str]]
"""The launches that can compute a call, with their kernels' symbols."""


def early_releases(program: Program) -> list[bool]:
    """Return for each call whether its kernel releases the next one before it waits itself."""
    found, writers = list[bool](), dict[Buffer, Call]()
    for call in program.calls:
        named: dict[str, Any] = CALLS.of(call).named(call)
        x = named.get("raw") or named.get("x")  # the rows before their norm, if it computes that
        writer = writers.get(x.buffer) if _multiplies(call) and x is not None else None
        found.append(writer is not None and not _multiplies(writer))
        for operand, view in CALLS.of(call).each(call):
            if operand.written and view is not None:
                writers[view.buffer] = call
    return found


def with_releases(program: Program, launches: Sequence[Choices]) -> list[Choices]:
    """Return the launches of a program's calls, with the releases that suit their places."""
    pairs = zip(early_releases(program), launches, strict=True)
    return [[(_early(one), s) for one, s in own] if early else own for early, own in pairs]


def _multiplies(call: Call) -> bool:
    """Whether a call multiplies by a matrix."""
    return call.op in ("gemm", "gemm_nbits")


def _early(launch: Launch) -> Launch:
    arguments = (replace(a, value=0) if a.kind == "late" else a for a in launch.arguments)
    return replace(launch, arguments=tuple(arguments))
