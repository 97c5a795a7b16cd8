"""Programs that measure a processor, one per multiply-add instruction."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tracea_graph.kernels.cpu.emitter import CompilationUnit, render
from tracea_graph.kernels.cpu.isa_levels import COMMON_FLAGS, PLAIN, isa_of

__all__ = ["PROBES", "Probe", "probe_source", "template_names"]

_HERE, _TEMPLATE = Path(__file__).resolve().parent, "probe.cpp.in"


@dataclass(frozen=True)
class Probe:
    """One instruction to measure: element type, level, processor feature, compiler flags.

    ``feature`` is spelled as in Linux's ``/proc/cpuinfo``; empty if the level implies it.
    """

    dtype: str
    isa: str
    feature: str = ""
    flags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The feature if there is one, else the level."""
        return self.feature or self.isa


PROBES = (
    *(Probe("f32", isa.name) for isa in PLAIN),
    Probe("f16", "avx512", "avx512_fp16", ("-mavx512fp16",)),
    Probe("bf16", "avx512", "avx512_bf16", ("-mavx512bf16",)),
    Probe("bf16", "avx512", "amx_bf16", ("-mamx-tile", "-mamx-bf16")),
    Probe("i16", "avx512", "avx512_vnni", ("-mavx512vnni",)),
    Probe("i8", "avx512", "avx512_vnni", ("-mavx512vnni",)),
    Probe("i8", "avx512", "amx_int8", ("-mamx-tile", "-mamx-int8")),
    Probe("i8", "avx2", "avx_vnni", ("-mavxvnni",)),
    Probe("f16", "neon", "asimdhp"),
    Probe("bf16", "neon", "bf16"),
    Probe("i8", "neon", "asimddp"),
    Probe("i8", "neon", "i8mm"),
)


def probe_source(probe: Probe) -> CompilationUnit:
    """The complete source of a microbenchmark, ``main`` included."""
    text = render(
        _TEMPLATE,
        isa=probe.isa,
        needs=frozenset(),
        instruction=probe.feature or "fma",
        dtype=probe.dtype,
    )
    flags = (*COMMON_FLAGS, *isa_of(probe.isa).flags, *probe.flags)
    return CompilationUnit(f"probe_{probe.dtype}_{probe.name}", text, flags)


def template_names() -> tuple[str, ...]:
    """Return the names of the files that the microbenchmarks' sources are assembled from."""
    contract = sorted(path.name for path in _HERE.glob("tracea_*.h"))
    parts = (_TEMPLATE, "prelude.h", *(f"vec_{isa.name}.h" for isa in PLAIN))
    return (*contract, *(f"micro/{name}" for name in parts))
