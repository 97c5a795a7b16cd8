"""Instruction-set levels: vector width, CPU features, compiler flags, and processor detection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tracea_graph.hardware.cpu import CpuProfile, profile_cpu

__all__ = [
    "ARM",
    "COMMON_FLAGS",
    "FAMILIES",
    "LEVELS",
    "PLAIN",
    "TILES",
    "X86",
    "Isa",
    "IsaFamily",
    "families_with_level",
    "family_of",
    "features_of",
    "fingerprint",
    "host_levels",
    "host_library_levels",
    "isa_of",
    "levels_of",
    "vector_level_of",
]  # fmt: skip

COMMON_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
)
"""Compiler flags of every kernel.

Fused multiply-adds are explicit and contraction is off, so that results do not depend on the tile
shape."""

_AVX2 = ("-mavx2", "-mfma")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl")
_AVX512_FEATURES = ("avx2", "fma", "avx512f", "avx512dq", "avx512bw", "avx512vl")


@dataclass(frozen=True)
class Isa:
    """One instruction-set level: its name, float32 lanes per vector, CPU features and flags.

    ``features`` are spelled as in Linux's ``/proc/cpuinfo``.  A level with a ``base`` has the
    vectors of the base, and also uses the base's kernels unless it has its own.  ``products`` is
    empty for levels of every precision.  Levels with ``int8`` add kernels that multiply 8-bit
    integers, levels with ``bf16`` add kernels that multiply bf16 or int16, those with ``fp16``
    kernels that multiply fp16.  No processor that has the level ``replaced_by`` needs this one.
    """

    name: str
    width: int
    features: tuple[str, ...]
    flags: tuple[str, ...]
    base: str = ""
    products: str = ""
    replaced_by: str = ""


@dataclass(frozen=True)
class IsaFamily:
    """The levels of one processor architecture, lowest first.

    ``name`` is spelled as by ``uname -m``.
    """

    name: str
    levels: tuple[Isa, ...]

    @property
    def plain(self) -> tuple[Isa, ...]:
        """The levels of every precision."""
        return self._with("")

    @property
    def int8(self) -> tuple[Isa, ...]:
        """The levels for kernels that multiply 8-bit integers."""
        return self._with("int8")

    @property
    def bf16(self) -> tuple[Isa, ...]:
        """The levels for kernels that multiply bf16 or int16."""
        return self._with("bf16")

    @property
    def fp16(self) -> tuple[Isa, ...]:
        """The levels for kernels that multiply fp16."""
        return self._with("fp16")

    def of(self, precision: str) -> tuple[Isa, ...]:
        """The levels at which kernels of a precision exist."""
        whole = precision.removesuffix("-weights")
        if whole == "int8":
            return self._with("", "int8")
        if whole == "fp16":
            return self._with("", "fp16")
        return self._with("", "bf16") if whole in ("int16", "bf16", "bf16x2") else self.plain

    def _with(self, *products: str) -> tuple[Isa, ...]:
        return tuple(isa for isa in self.levels if isa.products in products)


_SCALAR = Isa("scalar", 1, (), ())
_BF16_FEATURES = (*_AVX512_FEATURES, "avx512_bf16", "avx512_vnni")
X86 = IsaFamily(
    "x86_64",
    (
        _SCALAR,
        Isa("avx2", 8, ("avx2", "fma"), _AVX2),
        Isa(
            "avxvnni", 8, ("avx2", "fma", "avx_vnni"), (*_AVX2, "-mavxvnni"),
            base="avx2", products="int8", replaced_by="avx512vnni",
        ),
        Isa("avx512", 16, _AVX512_FEATURES, _AVX512),
        Isa(
            "avx512vnni", 16, (*_AVX512_FEATURES, "avx512_vnni"), (*_AVX512, "-mavx512vnni"),
            base="avx512", products="int8",
        ),
        Isa(
            "avx512bf16", 16, _BF16_FEATURES, (*_AVX512, "-mavx512bf16", "-mavx512vnni"),
            base="avx512vnni", products="bf16",
        ),
        Isa(
            "amxint8", 16, (*_AVX512_FEATURES, "avx512_vnni", "amx_tile", "amx_int8"),
            (*_AVX512, "-mavx512vnni", "-mamx-tile", "-mamx-int8"),
            base="avx512vnni", products="int8", replaced_by="amxbf16",
        ),
        Isa(
            "amxbf16", 16, (*_BF16_FEATURES, "amx_tile", "amx_int8", "amx_bf16"),
            (*_AVX512, "-mavx512bf16", "-mavx512vnni", "-mamx-tile", "-mamx-int8", "-mamx-bf16"),
            base="avx512bf16", products="bf16",
        ),
    ),
)  # fmt: skip
"""Intel's and AMD's processors.

Processors have ``avxvnni`` with or without AVX-512, so no other level contains it."""

ARM = IsaFamily(
    "aarch64",
    (
        _SCALAR,
        Isa("neon", 4, ("asimd",), ()),
        Isa(
            "neondot", 4, ("asimd", "asimddp"), ("-mcpu=generic+dotprod",),
            base="neon", products="int8",
        ),
        Isa(
            "neoni8mm", 4, ("asimd", "asimddp", "i8mm"), ("-mcpu=generic+dotprod+i8mm",),
            base="neondot", products="int8",
        ),
        Isa(
            "neonbf16", 4, ("asimd", "asimddp", "i8mm", "bf16"),
            ("-mcpu=generic+dotprod+i8mm+bf16",), base="neoni8mm", products="bf16",
        ),
        # beside the others, not above them: many cores have it without i8mm and bf16
        Isa(
            "neonfp16", 4, ("asimd", "asimddp", "asimdhp"),
            ("-mcpu=generic+dotprod+fullfp16",), base="neondot", products="fp16",
        ),
    ),
)  # fmt: skip
"""64-bit processors of Arm's architecture, from Armv8.0 on."""

FAMILIES = (X86, ARM)

PLAIN = tuple(dict.fromkeys(isa for family in FAMILIES for isa in family.plain))
"""Levels of every family that serve every precision."""

LEVELS = tuple(dict.fromkeys(isa for family in FAMILIES for isa in family.levels))
"""Levels of every family, in the order of the library's table."""

_WINDOWS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "pf19": ("asimd",),
        "pf43": ("asimddp",),
        "pf66": ("i8mm",),
        "pf67": ("asimdhp",),
        "pf68": ("bf16",),
        "pf40": ("avx2", "fma"),
        "pf41": ("avx512f", "avx512dq", "avx512bw", "avx512vl"),
    }
)
"""Features by Windows' numbers, which do not tell the parts of AVX-512 apart."""

TILES = "amxbf16"
"""The level that multiplies bf16 on matrix tiles."""

_NOTED = (
    "avx_vnni",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
)
"""Processor features that variants may need in addition to those of their level."""


_LEVEL: Mapping[str, Isa] = MappingProxyType({isa.name: isa for isa in LEVELS})


def isa_of(name: str) -> Isa:
    """The level called ``name``.  Raises KeyError for an unknown one."""
    return _LEVEL[name]


def families_with_level(name: str) -> tuple[IsaFamily, ...]:
    """The families that have the level ``name``.  Raises KeyError if unknown."""
    isa = isa_of(name)
    return tuple(family for family in FAMILIES if isa in family.levels)


def vector_level_of(name: str) -> str:
    """Return the level that defines the vectors of level ``name``.  Raises KeyError if unknown."""
    base = isa_of(name).base
    return vector_level_of(base) if base else name


# ---- what a processor has ------------------------------------------------------------------


def _flags(cpu: CpuProfile) -> frozenset[str]:
    """The processor's features in Linux's spelling, on Windows too."""
    return cpu.flags.union(*(_WINDOWS.get(flag, ()) for flag in cpu.flags))


def family_of(cpu: CpuProfile) -> IsaFamily:
    """The family of a processor: Arm's if it has Arm's vector instructions, else x86's."""
    return ARM if _flags(cpu).issuperset(ARM.plain[1].features) else X86


def levels_of(cpu: CpuProfile, precision: str = "fp32") -> tuple[str, ...]:
    """The levels of a processor, lowest first.

    The precisions int8, int16 and bf16 add higher levels.
    """
    flags = _flags(cpu)
    levels = family_of(cpu).of(precision)
    return tuple(isa.name for isa in levels if flags.issuperset(isa.features))


def host_levels(precision: str = "fp32") -> tuple[str, ...]:
    """The levels of this machine's processor for a precision, lowest first."""
    return levels_of(profile_cpu(), precision)


def host_library_levels(precision: str) -> tuple[str, ...]:
    """The levels that a library for this machine has code for, lowest first.

    Besides those of the precision, these are the levels that multiply 8-bit integers.
    """
    wanted = "bf16" if precision == "int8" else precision  # for what is no product
    found = {*host_levels(wanted), *host_levels("int8")}
    return tuple(i.name for i in LEVELS if i.name in found and i.replaced_by not in found)


def features_of(cpu: CpuProfile) -> tuple[str, ...]:
    """Return features of a processor that no level implies, but that some variants need."""
    return tuple(flag for flag in _NOTED if flag in cpu.flags)


def fingerprint(cpu: CpuProfile) -> dict[str, Any]:
    """The processor's properties that results depend on, as JSON-ready values.

    Keys of caches contain these names, so renaming one invalidates the caches.
    """
    return {
        "model": cpu.model, "isas": levels_of(cpu), "epilogue_inputs": features_of(cpu),
        "cores": cpu.cores, "threads": cpu.threads, "l1d": cpu.l1d, "l2": cpu.l2, "l3": cpu.l3,
    }  # fmt: skip
