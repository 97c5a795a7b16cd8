"""Digest of the source text behind a measured call: kernels, runtime and chain."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from tracea_graph.kernels.cpu import emitter
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.schedule import ConvSchedule, GemmSchedule, TaskSchedule
from tracea_graph.kernels.cpu.schedules.conv_problem import ConvProblem
from tracea_graph.kernels.cpu.schedules.gemm_problem import GemmProblem
from tracea_graph.kernels.cpu.schedules.task_problem import TaskProblem
from tracea_graph.kernels.program import Schedule
from tracea_graph.toolchain.object_cache import sha256_of_parts

__all__ = ["measured_source_digest"]

_RUNTIME = (
    "tracea_*.h",
    "../runtime/core.h",
    "runtime/run.h",
    "runtime/slots.h",
    "micro/vec_*.h",
)
_PRODUCTS = ("runtime/gemm.h", "runtime/gemm_rows.h", "runtime/gemm_tile.h", "micro/gemm_*.h")
_CONVOLUTIONS = (
    "runtime/blocked.h",
    "runtime/conv.h",
    "runtime/conv_tiling.h",
    "runtime/depthwise.h",
    "runtime/partition.h",
    "runtime/winograd.h",
    "micro/conv_*.h",
)
_TASKS = (
    *_PRODUCTS, "runtime/attention.h", "runtime/elementwise.h", "runtime/gemm_block_sparse.h",
    "runtime/gemm_nbits.h", "runtime/partition.h", "micro/attention_*.h",
)  # fmt: skip
_FILES: Mapping[type[Schedule] | None, tuple[str, ...]] = MappingProxyType(
    {GemmSchedule: _PRODUCTS, ConvSchedule: _CONVOLUTIONS, TaskSchedule: _TASKS}
)
"""Files other than kernels that a measurement depends on, as globs."""


def measured_source_digest(problem: GemmProblem | ConvProblem | TaskProblem, level: str) -> str:
    """Digest of all source text of the measured code."""
    chain = emitter.emit_unit("chain", level, problem.epilogue).text if problem.epilogue else ""
    return sha256_of_parts(_sources(problem.kernel, level), chain)[:16]


@cache
def _sources(kernel: str, level: str) -> str:
    """Digest of a kernel's text and of the runtime around it."""
    folder = Path(emitter.__file__).resolve().parent
    globs = (*_RUNTIME, *_FILES[CALLS[kernel].schedule])
    paths = sorted({path for glob in globs for path in folder.glob(glob)})
    sources = [emitter.emit_unit(name, level) for name in sorted(CALLS[kernel].needs)]
    words = (word for source in sources for word in (source.text, *source.flags))
    return sha256_of_parts(*words, *(path.read_bytes() for path in paths))
