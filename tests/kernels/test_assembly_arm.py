"""Inner loops of Arm's kernels, cross-compiled: multiplications, loads, and what a model of a
processor makes of them."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import pytest

from models import modelled_tiles
from models.modelled_tiles import (
    OLDEST_LLVM,
    TILES,
    InnerLoop,
    Tile,
    inner_loop,
    major_version,
    model_analyzer,
    share,
)
from tracea_graph.kernels.cpu import peak_probes
from tracea_graph.kernels.cpu.peak_probes import PROBES, Probe, probe_source
from tracea_graph.toolchain.compilers import find_compiler
from tracea_graph.toolchain.platforms import PLATFORMS

needs_zig = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None, reason="needs the ziglang wheel"
)
OTHERS = 20  # instructions of addresses, prefetches and the loop itself; of blocks, to zip B
each_tile = pytest.mark.parametrize("tile", TILES, ids=lambda t: f"{t.kernel}-{t.level}-{t.rows}")


@pytest.mark.slow
@needs_zig
@each_tile
def test_factors_come_from_lanes_and_sums_stay_in_registers(tile: Tile) -> None:
    """A vector is loaded once, and a register of the left operand serves four steps."""
    loop = inner_loop(tile)
    passes, vectors = (tile.turns, 8) if tile.blocks else (tile.turns // 4, 16)
    assert len(loop.products) == tile.products
    assert loop.loads <= passes * (vectors + tile.rows)
    assert not loop.spills
    assert loop.others <= passes * OTHERS


@pytest.mark.slow
@needs_zig
@each_tile
def test_units_that_multiply_do_little_else(tile: Tile) -> None:
    """Blocks zip each vector of B and join the rows of A, once: 24 of 35 instructions multiply.

    Only another order of weights would raise that, and all levels share one (models/RESULTS.md).
    `sdot` multiplies signed bytes, made of unsigned ones once a row.
    """
    loop, passes = inner_loop(tile), tile.turns
    beside = passes * (8 + tile.rows // 2) if tile.blocks else 0
    if tile.multiply == "sdot":
        beside = tile.rows
    assert loop.bound == tile.products / (tile.products + beside)


@pytest.mark.slow
@needs_zig
@pytest.mark.skipif(model_analyzer() is None, reason=f"needs llvm-mca {OLDEST_LLVM} or later")
@pytest.mark.parametrize("core", ["neoverse-v1", "apple-m1"])
@each_tile
def test_the_multiplying_units_are_busy(tile: Tile, core: str) -> None:
    """Nearly as busy as what else they must do allows; a product of blocks does twice the work."""
    loop = inner_loop(tile)
    assert share(loop, core, model_analyzer() or "") >= 0.91 * loop.bound


@pytest.mark.slow
@needs_zig
@pytest.mark.parametrize(
    "tile", [tile for tile in TILES if tile.in_order], ids=lambda tile: tile.kernel
)
def test_cores_in_order_wait_for_no_vector(tile: Tile) -> None:
    """A core of this kind has a loaded vector after four cycles, and multiplies one a cycle."""
    assert inner_loop(tile).ahead >= 7
    assert inner_loop(replace(tile, in_order=False)).ahead < 2


@pytest.mark.slow
@needs_zig
@pytest.mark.parametrize("probe", [p for p in PROBES if p.isa == "neon"], ids=lambda p: p.name)
def test_programs_that_measure_peaks_multiply_alone(probe: Probe, tmp_path: Path) -> None:
    source = probe_source(probe)
    (tmp_path / "p.cpp").write_text(source.text)
    headers = Path(peak_probes.__file__).resolve().parent
    args = (*source.flags, f"-I{headers}", "-S", "p.cpp", "-o", "p.s")
    find_compiler(platform=PLATFORMS["linux-aarch64"]).run(args, tmp_path)
    code = (tmp_path / "p.s").read_text(errors="replace")
    products = list(re.finditer(r"\t(?:bfmmla|fmla|sdot|smmla)\t", code))
    assert len(products) == 16
    between = code[products[0].start() : products[-1].end()]  # what is behind the loop counts not
    assert not re.findall(r"\tmov\tv", between)


def test_a_loops_instructions_are_told_apart() -> None:
    code = (
        "ldp\tq0, q1, [x0]", "ldr\ts2, [x1]", "ldr\tx5, [x1]", "fmla\tv3.4s, v0.4s, v2.s[0]",
        "mov\tv4.16b, v3.16b", "mov\tv4.d[1], v3.d[0]", "str\tq4, [sp, #16]", "b.ne\t.L1",
    )  # fmt: skip
    loop = InnerLoop(code, "fmla")
    assert loop.products == (code[3],)
    assert loop.loads == 3 and loop.others == 5
    assert loop.spills == (code[4], code[6])
    assert loop.bound == 1 / 3  # beside two moves


@pytest.mark.parametrize(("version", "kept"), [("14.0.6", False), ("19.1.7", True), ("?", False)])
def test_models_of_old_releases_are_not_asked(
    version: str, kept: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tool = tmp_path / "llvm-mca"
    tool.write_text(f"#!/bin/sh\necho Debian LLVM version {version}\n")
    tool.chmod(0o755)
    assert major_version(str(tool)) == (int(version[:2]) if version != "?" else 0)
    monkeypatch.setattr(modelled_tiles, "llvm_tool", lambda name: str(tool))
    assert (model_analyzer() == str(tool)) == kept
