"""The inner loop of the matrix product, as machine code: multiply-adds, loads, nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tests.kernels.conformance import compile_unit
from tracea_graph.kernels.cpu import emit
from tracea_graph.kernels.variants import gemm_tile, isa_of

STEPS = 2  # of k in one turn of the loop


def _inner_loop(isa: str) -> list[str]:
    """The instructions of the loop with the most multiply-adds in the largest register tile."""
    library = compile_unit(emit("gemm", isa))
    text = subprocess.run(
        ["objdump", "-d", "-C", "--no-show-raw-insn", str(library)],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    mr, nv = gemm_tile(isa)
    start = re.search(rf"^\w+ <.*tile<{mr}, {nv}, false>.*>:$", text, re.MULTILINE)
    assert start is not None
    body = text[start.end() :].lstrip("\n").split("\n\n")[0]
    rows = [line.split(":\t") for line in body.splitlines() if ":\t" in line]
    where = {int(address, 16): i for i, (address, _) in enumerate(rows)}
    loops = []
    for i, (_, code) in enumerate(rows):
        target = re.match(r"j\w+\s+([0-9a-f]+)", code)
        begin = where.get(int(target.group(1), 16), i) if target else i
        if begin < i:
            loops.append([code for _, code in rows[begin : i + 1]])
    fewest = min(len(loop) for loop in loops if _count("vfmadd", loop) >= STEPS * mr * nv)
    return next(loop for loop in loops if len(loop) == fewest)


def _count(pattern: str, code: list[str]) -> int:
    return sum(bool(re.match(pattern, line)) for line in code)


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
@pytest.mark.parametrize("level", ["avx2", "avx512"])
def test_inner_loop_keeps_its_accumulators_in_registers(level: str) -> None:
    loop = _inner_loop(level)
    mr, nv = gemm_tile(level)
    vectors = nv * 16 // isa_of(level).width
    assert _count("vfmadd", loop) == STEPS * mr * vectors
    assert _count(r"vbroadcastss .*\(", loop) == STEPS * mr
    assert _count(r"vmovups .*\(.*%[yz]mm\d+$", loop) <= STEPS * vectors
    spills = [line for line in loop if re.search(r"[yz]mm", line) and "%rsp" in line]
    assert not spills
