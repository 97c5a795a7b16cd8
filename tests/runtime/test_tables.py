"""A library whose tables are damaged is refused with a sentence; it never crashes."""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.runtime.cases import all_cases
from tests.runtime.support import model, run_worker
from tracea_graph.kernels.cpu.isa_levels import host_levels
from tracea_graph.kernels.cpu.library_build import build_library
from tracea_graph.kernels.program import LibraryContents
from tracea_graph.toolchain import Library, linking

pytestmark = pytest.mark.compiler
CASES = {case.name: case for case in all_cases()}
CASE = CASES["gemm_chain_37x72_layout0"]
OTHERS = ("gemm_then_norm", "attention_boolean", "embedding_int64_2x5", "elementwise_large")
TABLES = re.compile(
    r"tracea_library_table|tracea_chain_types|tracea_chain_count|tracea_table_digest|levels|types"
    r"|chain_keys|chains_\w+|inputs_\d+|outputs_\d+"
)
EXTREMES = (0, 1, 0x7F, 0xFF)


@dataclass(frozen=True)
class Spot:
    """Bytes ``start .. end`` of the file; ``pointer``: the addend of a pointer to data."""

    start: int
    end: int
    pointer: bool


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """A library that still has its symbols."""
    out = tmp_path_factory.mktemp("tables") / "whole.so"
    types = sorted({CASES[n].type for n in (CASE.name, *OTHERS)}, key=lambda t: t.name)
    chains = [c.chain for case in CASES.values() for c in case.program.calls if c.chain]
    unique = list({chain.key: chain for chain in chains}.values())
    with pytest.MonkeyPatch.context() as patch:
        flags = tuple(flag for flag in linking.LINK_FLAGS if flag != "-s")
        patch.setattr(linking, "LINK_FLAGS", flags)
        isas = host_levels()[-1:]
        levels = ("scalar", *isas)
        return build_library(
            LibraryContents(types, ("gemm", "norm"), unique), levels, out, quick=True
        )


def readelf(path: Path, *options: str) -> list[list[str]]:
    done = subprocess.run(["readelf", "-W", *options, path], capture_output=True, text=True)
    return [line.split() for line in done.stdout.splitlines()]


def spots(path: Path) -> Iterator[Spot]:
    """Every number, and every pointer to data, of the library's tables."""
    places, sections = list[tuple[int, int]](), dict[str, tuple[int, int, int]]()
    for row in readelf(path, "-S"):
        words = " ".join(row).replace("[ ", "[").split()
        if len(words) > 5 and words[0].startswith("[") and words[1].startswith("."):
            sections[words[1]] = (int(words[3], 16), int(words[4], 16), int(words[5], 16))
    text, text_size = sections[".text"][0], sections[".text"][2]

    def offset(address: int) -> int:
        at, file, _ = next(
            s for n, s in sections.items()
            if n in (".rodata", ".data.rel.ro") and s[0] <= address < s[0] + s[2]
        )  # fmt: skip
        return address - at + file

    for row in readelf(path, "-s"):
        if len(row) == 8 and row[3] == "OBJECT" and TABLES.fullmatch(row[7]):
            places.append((int(row[1], 16), int(row[2], 0)))
    relative = set[int]()
    _, file, size = sections[".rela.dyn"]
    data = path.read_bytes()
    for entry in range(file, file + size, 24):
        where, kind, addend = (
            int.from_bytes(data[entry + 8 * i : entry + 8 * i + 8], "little") for i in range(3)
        )
        if kind == 8 and any(start <= where < start + length for start, length in places):
            relative.add(where)
            if not text <= addend < text + text_size:
                yield Spot(entry + 16, entry + 24, True)
    for start, length in places:
        for word in range(start, start + length, 4):
            if word not in relative and word - 4 not in relative:
                yield Spot(offset(word), offset(word) + 4, False)


def damaged(data: bytes, spot: Spot, chance: random.Random) -> bytes:
    changed = bytearray(data)
    at = chance.randrange(spot.start, spot.end - (4 if spot.pointer else 0))
    if chance.random() < 0.7:
        changed[at] ^= 1 << chance.randrange(8)
    else:
        changed[spot.start : spot.end] = bytes([chance.choice(EXTREMES)]) * (spot.end - spot.start)
    return bytes(changed)


@pytest.mark.parametrize(
    "count", [300, pytest.param(5000, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_damaged_tables_are_refused(count: int, built: Library, tmp_path: Path) -> None:
    chance, data, places = random.Random(count), built.path.read_bytes(), list(spots(built.path))
    assert len(places) > 100 and any(p.pointer for p in places)
    onnx.save(model(CASE.program, built.domain), tmp_path / "model.onnx")
    np.savez(tmp_path / "feeds.npz", **{f"x{i}": x for i, x in enumerate(CASE.feeds)})
    job = {"task": "libraries", "model": str(tmp_path / "model.onnx")}
    said = list[str]()
    for batch in range(0, count, 100):
        folder = tmp_path / str(batch)
        folder.mkdir()
        for i in range(100):
            (folder / f"{i:03}.so").write_bytes(damaged(data, chance.choice(places), chance))
        said += run_worker({**job, "folder": str(folder), "feeds": str(tmp_path / "feeds.npz")})
        for path in folder.iterdir():
            path.unlink()
    refused = [text for text in said if text]
    assert all("tables of this library are damaged" in text for text in refused)
    assert len(refused) > 0.6 * count  # others hit padding, or wrote what was there


def test_whole_tables_are_taken(built: Library, tmp_path: Path) -> None:
    onnx.save(model(CASE.program, built.domain), tmp_path / "model.onnx")
    np.savez(tmp_path / "feeds.npz", **{f"x{i}": x for i, x in enumerate(CASE.feeds)})
    job = {"task": "libraries", "model": str(tmp_path / "model.onnx")}
    said = run_worker(
        {**job, "folder": str(built.path.parent), "feeds": str(tmp_path / "feeds.npz")}
    )
    assert said == [""]
