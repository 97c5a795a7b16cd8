"""The processor as the operating system describes it: flags, cores and caches.

Read from ``/proc/cpuinfo`` (whose flags leave out what the operating system does not enable) and
sysfs; elsewhere from what the system offers instead.  Sizes are bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracea_graph.config import usable_processors
from tracea_graph.hardware.cpu_features import system_features, system_model

__all__ = ["CpuProfile", "fingerprint_hash", "profile_cpu"]


_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class CpuProfile:
    """One processor.

    ``flags`` are its features as in ``/proc/cpuinfo``; ``threads`` is the number of logical
    processors this process may use, ``cores`` that of physical cores of the machine; cache sizes
    are those available to one core, 0 if unknown.
    """

    model: str
    flags: frozenset[str]
    cores: int
    threads: int
    l1d: int
    l2: int
    l3: int


def profile_cpu(
    cpuinfo: Path = _CPUINFO, sysfs: Path = Path("/sys/devices/system/cpu")
) -> CpuProfile:
    """Profile the processor; unknown fields are 0 or empty."""
    records = _records(cpuinfo)
    first = records[0] if records else {}
    caches = _caches(sysfs / "cpu0" / "cache")
    threads = usable_processors()
    flags = system_features() if cpuinfo == _CPUINFO else frozenset()
    places = {(r.get("physical id", "0"), r.get("core id", str(i))) for i, r in enumerate(records)}
    return CpuProfile(
        model=first.get("model name") or _part(first) or system_model() or "unknown",
        flags=flags or frozenset(first.get("flags", "").split()),
        cores=len(places) or threads,
        threads=threads,
        l1d=caches.get("l1d", 0),
        l2=caches.get("l2", 0),
        l3=caches.get("l3", 0),
    )


def fingerprint_hash(facts: Mapping[str, Any]) -> str:
    """Return sixteen hex digits of JSON-ready facts, equal for equal machines."""
    text = json.dumps(dict(facts), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _part(record: Mapping[str, str]) -> str:
    """The model of an Arm core, which has numbers only: implementer and part, in hex."""
    maker, part = record.get("CPU implementer", ""), record.get("CPU part", "")
    return f"arm {maker} {part}" if maker and part else ""


def _records(cpuinfo: Path) -> list[dict[str, str]]:
    try:
        text = cpuinfo.read_text(encoding="utf-8")
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
                (index / n).read_text(encoding="utf-8").strip() for n in ("level", "type", "size")
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
