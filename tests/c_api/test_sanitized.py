"""C and C++ hosts under sanitizers: no race, no stray access, no undefined behavior."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tracea_graph.kernels.cpu import emitter, library_table
from tracea_graph.kernels.cpu.host_loop_units import units_for
from tracea_graph.kernels.cpu.standalone_functions import STANDALONE, kernels_of_functions

ROOT = Path(__file__).resolve().parents[2]
HOSTS = Path(__file__).with_name("hosts")
_INCLUDE = ("-Ikernels/cpu", "-Ikernels", "-Ikernels/runtime")
_FLAGS = ("-std=c++17", "-O1", "-g", *_INCLUDE)


def compiled(sources: Sequence[Path], sanitizer: str, folder: Path) -> list[str]:
    """Compile the sources of a library under a sanitizer."""

    def one(source: Path) -> str:
        out = folder / f"{source.stem}.o"
        flags = (*_FLAGS, f"-fsanitize={sanitizer}", "-fno-exceptions", "-fno-rtti")
        subprocess.run(["g++", *flags, "-c", source, "-o", out], check=True, cwd=ROOT)
        return str(out)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(one, sources))


@pytest.mark.sanitizer
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_hosts_run_clean(sanitizer: str, tmp_path: Path) -> None:
    contents = kernels_of_functions(tuple(STANDALONE))
    units = ("runtime", *(f"{unit}_loops" for unit in units_for(frozenset(contents.kernels))))
    runtime = ROOT / "kernels" / "cpu" / "runtime"
    sources = [*(runtime / f"{unit}.cpp" for unit in units), tmp_path / "table.cpp"]
    text = library_table.table_source("tracea.0000000000", contents, ["scalar"])
    sources[-1].write_text(text)
    for unit in emitter.compilation_units(contents.kernels, contents.chains, ["scalar"]):
        sources.append(tmp_path / f"{unit.symbol}.cpp")
        sources[-1].write_text(unit.text)
    objects = compiled(sources, sanitizer, tmp_path)
    for host in ("conv2d.cpp", "gemm.c"):
        out = tmp_path / "host"
        link = ("-x", "c++", HOSTS / host, "-x", "none", *objects, "-o", out, "-pthread", "-lm")
        command = ["g++", *_FLAGS, f"-fsanitize={sanitizer}", *link]
        subprocess.run(command, check=True, cwd=ROOT)
        # without the randomized addresses that the thread sanitizer cannot map
        ran = subprocess.run(
            ["setarch", "-R", out] if shutil.which("setarch") else [out],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert "WARNING" not in ran.stderr and "runtime error" not in ran.stderr, ran.stderr
