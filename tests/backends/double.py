"""The GPU backend on this machine: kernels in the host dialect, and a double of the driver.

Its library is the one a GPU runs, but for the kernels' language: ``libcuda.so.1`` of a folder that
:func:`driver` makes loads and launches them.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from tests.kernels.gpu.machine import compiled
from tracea_graph.config import Environment
from tracea_graph.kernels.gpu.backend import GpuBackend
from tracea_graph.kernels.gpu.dialect import HOST
from tracea_graph.kernels.gpu.library import Image
from tracea_graph.kernels.gpu.source import KernelSource
from tracea_graph.toolchain.compilers import COMPILE_SECONDS, find_compiler

__all__ = ["DOUBLE", "driver"]


@cache
def driver() -> Path:
    """The folder of the driver's double, compiled once."""
    folder = Path(mkdtemp(prefix="driver"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source = Path(__file__).with_name("libcuda.cpp")
    flags = ("-std=c++17", "-O1", "-fPIC", "-shared", "-Wl,-soname,libcuda.so.1")
    command = [*find_compiler().command, *flags, str(source), "-o", "libcuda.so.1", "-ldl"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=COMPILE_SECONDS
    )
    assert done.returncode == 0, done.stderr[:4000]
    return folder


def images(sources: Sequence[KernelSource], target: str, environment: Environment) -> list[Image]:
    """Shared objects of kernels, which the double loads."""
    with ThreadPoolExecutor(2) as pool:
        made = pool.map(compiled, sources)
        return [Image(s.symbol, data) for s, data in zip(sources, made, strict=True)]


class Double(GpuBackend):
    """Named ``double``; its one level is that of the double's device."""

    targets = ("double:sm_90",)


DOUBLE = Double("double", HOST, images)
