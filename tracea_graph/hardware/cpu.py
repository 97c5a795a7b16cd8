"""What this machine's processor can do: instruction sets, cores, caches, and a fingerprint.

Read from ``/proc/cpuinfo`` (whose flags already leave out what the operating system does not
enable) and sysfs.  Sizes are bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tracea_graph.config import usable_processors
from tracea_graph.kernels.cpu.levels import BF16_ISAS, ISAS

__all__ = ["CpuProfile", "fingerprint", "fingerprint_hash", "profile_cpu"]

_NOTED = (
    "avx_vnni",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
)


@dataclass(frozen=True)
class CpuProfile:
    """One processor.

    ``isas`` are the kernel levels it runs, lowest first; ``extras`` further flags that variants
    may need; ``threads`` the logical processors this process may use, ``cores`` the physical ones
    of the machine; cache sizes are those one core sees, 0 if unknown.
    """

    model: str
    isas: tuple[str, ...]
    extras: tuple[str, ...]
    cores: int
    threads: int
    l1d: int
    l2: int
    l3: int

    def levels(self, precision: str = "fp32") -> tuple[str, ...]:
        """Kernel levels for a precision, lowest first: bf16 and int16 have their own on top."""
        if not precision.startswith(("bf16", "int16")):
            return self.isas
        levels = self.isas
        for isa in BF16_ISAS:
            wanted = {f for f in isa.features if f in _NOTED}
            if isa.base in levels and wanted <= set(self.extras):
                levels += (isa.name,)
        return levels


def profile_cpu(
    cpuinfo: Path = Path("/proc/cpuinfo"), sysfs: Path = Path("/sys/devices/system/cpu")
) -> CpuProfile:
    """Profile the processor; what a system does not tell is 0, empty or ``scalar``."""
    records = _records(cpuinfo)
    first = records[0] if records else {}
    flags = frozenset(first.get("flags", "").split())
    caches = _caches(sysfs / "cpu0" / "cache")
    threads = usable_processors()
    places = {(r.get("physical id", "0"), r.get("core id", str(i))) for i, r in enumerate(records)}
    return CpuProfile(
        model=first.get("model name", "unknown"),
        isas=tuple(_levels(flags)),
        extras=tuple(flag for flag in _NOTED if flag in flags),
        cores=len(places) or threads,
        threads=threads,
        l1d=caches.get("l1d", 0),
        l2=caches.get("l2", 0),
        l3=caches.get("l3", 0),
    )


def fingerprint(profile: CpuProfile) -> dict[str, Any]:
    """What a tuning result depends on, as JSON-ready values."""
    return asdict(profile)


def fingerprint_hash(profile: CpuProfile) -> str:
    """Sixteen hex digits: equal machines have equal ones."""
    text = json.dumps(fingerprint(profile), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _levels(flags: frozenset[str]) -> Iterable[str]:
    for isa in ISAS:
        if not flags.issuperset(isa.features):
            return
        yield isa.name


def _records(cpuinfo: Path) -> list[dict[str, str]]:
    try:
        text = cpuinfo.read_text()
    except OSError:
        return []
    records = []
    for block in text.strip().split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        records.append({key.strip(): value.strip() for key, _, value in pairs})
    return [record for record in records if "processor" in record]


def _caches(folder: Path) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for index in sorted(folder.glob("index*")):
        try:
            level, kind, size = (
                (index / n).read_text().strip() for n in ("level", "type", "size")
            )
        except OSError:
            continue
        if kind != "Instruction":
            sizes["l1d" if level == "1" else f"l{level}"] = _bytes(size)
    return sizes


def _bytes(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number = text.rstrip("KMG")
    return int(number) * units.get(text[-1:], 1) if number.isdigit() else 0
