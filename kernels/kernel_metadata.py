"""Facts about compiled kernels: what each is for, its tile, and the resources that it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["KernelMetadata", "LaunchSpec", "Resources"]


@dataclass(frozen=True)
class LaunchSpec:
    """How a kernel is started: what one task (or block) computes, and its threads and memory."""

    task: str
    threads: int = 1
    shared_bytes: int = 0
    scratch: str = ""


@dataclass(frozen=True)
class Resources:
    """Resources that a kernel's machine code uses, read from its object file or cubin.

    * ``code_bytes``: size of the instructions
    * ``registers``: vector registers in use; on GPUs registers per thread
    * ``stack_bytes``: size of the largest stack frame; on GPUs local memory per thread
    * ``spills``: stores of vector registers to the stack; on GPUs spilled words
    """

    code_bytes: int
    registers: int
    stack_bytes: int
    spills: int


@dataclass(frozen=True)
class KernelMetadata:
    """One kernel variant; ``resources`` is None if it was not compiled.

    ``fragments`` are the sides of its register tile, and further parameters of its template.
    ``epilogue`` names the operations that may follow, in this kernel or in another pass over
    memory.
    """

    name: str
    op: str
    dtype: str
    level: str
    tile: str
    symbols: tuple[str, ...]
    template: str
    launch: LaunchSpec
    epilogue: str = "none"
    fragments: Mapping[str, Any] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    resources: Resources | None = None

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON-ready values."""
        return asdict(self)
