"""Kernels that record when each of their blocks runs, and on which multiprocessor.

They are made only when asked (``TRACEA_TASK_TIMES=1``), for ``tracea bench --timeline``: another
parameter, and a record that begins with a kernel's body and ends with each of its warps.
"""

from __future__ import annotations

import re
from dataclasses import replace

from tracea_graph.errors import GraphError
from tracea_graph.kernels.gpu.dialect import Dialect
from tracea_graph.kernels.gpu.emitter import render
from tracea_graph.kernels.gpu.kernel_source import KernelSource

__all__ = ["FLAG", "with_block_times"]

FLAG = "-DTRACEA_BLOCK_TIMES"
"""Compiler flag of the runtime that launches such kernels."""
_SIGNATURE = re.compile(
    r"^(?P<macro>(?:CLUSTER_)?KERNEL\([^)]*\)\()(?P<parameters>.*?)(?P<body>\) \{\n)",
    re.MULTILINE | re.DOTALL,
)


def with_block_times(source: KernelSource, dialect: Dialect) -> KernelSource:
    """Return a kernel that records its blocks.  Raises GraphError for a text without a kernel."""
    words = render("block_times.h", dialect=dialect.name)
    text, found = _SIGNATURE.subn(
        lambda m: (
            f"{words}{m['macro']}{m['parameters']}, const block_times times_of_blocks{m['body']}"
            "  const block_timer timer(times_of_blocks);\n"
        ),
        source.text,
    )
    if found != 1:
        raise GraphError(f"{source.symbol} has {found} kernels, not one")
    return replace(source, text=text)
