"""The GPU backend on the CPU: kernels in the host dialect, and a test double of the CUDA driver.

Except for the kernels' language, its library is the one that runs on a GPU: it loads and launches
kernels through ``libcuda.so.1`` of the folder that :func:`driver` creates.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from tests.kernels.gpu.machine import compiled
from tracea_graph.config import Environment
from tracea_graph.kernels.gpu.backend import GpuBackend
from tracea_graph.kernels.gpu.dialect import HOST
from tracea_graph.kernels.gpu.kernel_source import KernelSource
from tracea_graph.kernels.gpu.library_build import Image
from tracea_graph.toolchain.compilers import COMPILE_SECONDS, find_compiler

__all__ = ["DOUBLE", "driver"]


@cache
def driver() -> Path:
    """Return the folder of the driver double, which is compiled once."""
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
    """Compile kernels to shared objects, which the driver double loads."""
    pairs = zip(sources, compiled(sources), strict=True)
    return [Image(source.symbol, data) for source, data in pairs]


class Double(GpuBackend):
    """GPU backend named ``double``; its only level is the architecture of the driver double."""

    targets = ("double:sm_90",)


DOUBLE = Double("double", HOST, images)
