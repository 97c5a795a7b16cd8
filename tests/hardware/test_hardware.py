"""Profiles from recorded ``/proc/cpuinfo`` and sysfs texts, and from this machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tracea_graph.hardware import CpuProfile, fingerprint_hash, profile_cpu
from tracea_graph.kernels.cpu.isa_levels import features_of, fingerprint, levels_of

AVX2 = "fpu sse2 avx avx2 fma f16c bmi1 bmi2"
AVX512 = f"{AVX2} avx512f avx512dq avx512bw avx512vl avx512_vnni avx512_bf16"


def machine(folder: Path, flags: str) -> CpuProfile:
    """Two cores with two threads each, in recorded texts."""
    blocks = [
        f"processor\t: {i}\nmodel name\t: Test CPU\nphysical id\t: 0\ncore id\t: {i % 2}\n"
        f"flags\t\t: {flags}\n"
        for i in range(4)
    ]
    (folder / "cpuinfo").write_text("\n".join(blocks))
    rows = (
        ("1", "Data", "48K"),
        ("1", "Instruction", "32K"),
        ("2", "Unified", "1024K"),
        ("3", "Unified", "32M"),
    )
    for i, row in enumerate(rows):
        place = folder / "cpu0" / "cache" / f"index{i}"
        place.mkdir(parents=True, exist_ok=True)
        for name, value in zip(("level", "type", "size"), row, strict=True):
            (place / name).write_text(value + "\n")
    return profile_cpu(folder / "cpuinfo", folder)


@pytest.mark.parametrize(
    ("flags", "isas"),
    [
        ("fpu sse2", ("scalar",)),
        (AVX2, ("scalar", "avx2")),
        (AVX512, ("scalar", "avx2", "avx512")),
        (AVX512.replace("avx512vl", ""), ("scalar", "avx2")),
        (AVX512.replace("fma", ""), ("scalar",)),
    ],
)
def test_levels_follow_the_flags(flags: str, isas: tuple[str, ...], tmp_path: Path) -> None:
    assert levels_of(machine(tmp_path, flags)) == isas


@pytest.mark.parametrize(
    ("flags", "isas"),
    [
        (f"{AVX2} avx_vnni", ("scalar", "avx2", "avxvnni")),
        (f"{AVX512} avx_vnni", ("scalar", "avx2", "avxvnni", "avx512", "avx512vnni")),
        (AVX512, ("scalar", "avx2", "avx512", "avx512vnni")),
        (
            f"{AVX512} amx_tile amx_int8",
            ("scalar", "avx2", "avx512", "avx512vnni", "amxint8"),
        ),
    ],
)
def test_levels_of_bytes_follow_the_flags(
    flags: str, isas: tuple[str, ...], tmp_path: Path
) -> None:
    assert levels_of(machine(tmp_path, flags), "int8") == isas


def test_cores_and_caches(tmp_path: Path) -> None:
    profile = machine(tmp_path, AVX512)
    assert (profile.model, profile.cores, features_of(profile)) == (
        "Test CPU",
        2,
        ("avx512_vnni", "avx512_bf16"),
    )
    assert (profile.l1d, profile.l2, profile.l3) == (48 << 10, 1 << 20, 32 << 20)


def test_a_system_that_tells_nothing(tmp_path: Path) -> None:
    profile = profile_cpu(tmp_path / "none", tmp_path)
    assert (profile.model, levels_of(profile), profile.l2) == ("unknown", ("scalar",), 0)
    assert profile.cores >= 1


def test_the_fingerprint_tells_machines_apart() -> None:
    here = profile_cpu()
    known = fingerprint_hash(fingerprint(here))
    assert known == fingerprint_hash(fingerprint(profile_cpu()))
    assert known != fingerprint_hash(fingerprint(replace(here, l2=here.l2 + 1)))
    assert json.loads(json.dumps(fingerprint(here)))["model"] == here.model
