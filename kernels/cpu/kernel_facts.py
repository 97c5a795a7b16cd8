"""Facts about the CPU's kernels: from the tables of variants, and from the machine code."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path

from tracea_graph.config import Environment
from tracea_graph.errors import BuildError
from tracea_graph.kernels.cpu import emitter
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.exported_functions import KERNELS
from tracea_graph.kernels.cpu.isa_levels import isa_of
from tracea_graph.kernels.cpu.kernel_catalog import variant_id
from tracea_graph.kernels.cpu.library_build import compiled_object
from tracea_graph.kernels.cpu.variants import VARIANTS, KernelVariant
from tracea_graph.kernels.kernel_metadata import KernelMetadata, LaunchSpec, Resources
from tracea_graph.temporary_files import ScratchFolder

__all__ = ["kernel_metadata", "resources_of"]

_SECONDS = 120.0
_VECTOR = re.compile(r"%[xyz]mm(\d+)|\b[vz](\d+)\.")
_FRAME = re.compile(r"\bsub\s+\$0x([0-9a-f]+),%rsp|\bsub\s+sp, sp, #0x([0-9a-f]+)")
_SPILL = re.compile(r"\bv?mov[a-z0-9]*\s+%[xyz]mm\d+,[-x0-9a-f]*\(%rsp|\bst[rp]\s+[qz]\d+.*\[sp")
_TASKS = {
    "gemm": "a chunk of rows by a group of columns, over all of k or a block of it",
    "conv": "tiles of output pixels by a group of output channels of one image",
    "depthwise": "rows of one block of channels of one image",
    "winograd": "tiles of one image, transformed together",
    "attention": "queries of the heads that share keys, or of some of them",
    "norm": "a chunk of rows",
}
"""What one task of an op's host loop computes; for ops not listed, a part of the result."""


def kernel_metadata(
    levels: Sequence[str],
    kernels: Container[str] | None = None,
    environment: Environment | None = None,
) -> tuple[KernelMetadata, ...]:
    """Return the facts of the variants for these levels, in the order of :data:`VARIANTS`.

    ``kernels`` restricts the result to variants with these ids or of these kernels.  With an
    environment, kernels are compiled or taken from its cache, and their resources are read if
    ``objdump`` is installed.  Raises BuildError.
    """
    found = []
    for variant in VARIANTS:
        if variant.isa not in levels or variant.kernel not in KERNELS:
            continue
        names = variant.kernel, variant_id(variant)
        if kernels is None or any(name in kernels for name in names):
            found.append(_metadata(variant, environment))
    return tuple(found)


def _metadata(variant: KernelVariant, environment: Environment | None) -> KernelMetadata:
    tiles = {(variant.kernel, variant.isa): variant.tile}
    symbols = emitter.symbols(variant.kernel, variant.isa, tiles=tiles)
    made = KernelMetadata(
        variant_id(variant), variant.op, variant.dtype, variant.isa,
        variant.tile, symbols, variant.template,
        LaunchSpec(_TASKS.get(variant.op, "a part of the result"), scratch=_scratch(variant.op)),
        _epilogue(variant.kernel), {name: str(value) for name, value in variant.params.items()},
        isa_of(variant.isa).features,
    )  # fmt: skip
    if environment is None or shutil.which("objdump") is None:
        return made
    unit = emitter.emit_unit(variant.kernel, variant.isa, tiles=tiles)
    return replace(made, resources=resources_of(compiled_object(unit, environment)))


def _scratch(op: str) -> str:
    return {"gemm": "packed columns per thread, where weights are not packed",
            "attention": "packed keys and values, and scores, per thread"}.get(op, "")  # fmt: skip


def _epilogue(kernel: str) -> str:
    """What the calls of a kernel may compute after their products."""
    calls = [schema for schema in CALLS.values() if kernel in schema.needs]
    chained = any(schema.chain == "epilogue" for schema in calls)
    clamped = any(a.name == "low" for schema in calls for a in schema.reals)
    parts = ("bias", "add", "clamp") if clamped else ("bias",) if chained else ()
    return " + ".join((*parts, "chain")) if chained else " + ".join(parts) or "none"


def resources_of(data: bytes) -> Resources:
    """Return the resources of an object's functions.  Raises BuildError without objdump."""
    with ScratchFolder("object") as name:
        path = Path(name) / "unit.o"
        path.write_bytes(data)
        try:
            text = subprocess.run(
                ["objdump", "-d", "--no-show-raw-insn", "-w", str(path)],
                capture_output=True, text=True, timeout=_SECONDS, check=True,
            ).stdout  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            raise BuildError(f"objdump cannot read a kernel: {error}") from error
    registers = {a or b for a, b in _VECTOR.findall(text)}
    frames = [int(a or b, 16) for a, b in _FRAME.findall(text)]
    code = re.findall(r"^\s+([0-9a-f]+):\t", text, re.M)
    return Resources(len(code) and _size(text), len(registers), max(frames, default=0),
                     len(_SPILL.findall(text)))  # fmt: skip


def _size(text: str) -> int:
    """Bytes of code: the distance from first to last instruction of every section."""
    total = 0
    for section in text.split("Disassembly of section")[1:]:
        places = [int(a, 16) for a in re.findall(r"^\s+([0-9a-f]+):\t", section, re.M)]
        total += max(places, default=0) - min(places, default=0) + 1 if places else 0
    return total
