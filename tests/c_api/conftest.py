"""A stand-alone library of all operations, built once for the highest level of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracea_graph.commands.build_kernel_library import KernelLibrary, build_kernels
from tracea_graph.kernels.cpu.isa_levels import host_levels
from tracea_graph.native_library import NativeLibrary

OPS = ("gemm", "conv2d", "attention", "norm")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> KernelLibrary:
    """The library as ``tracea kernels build`` writes it."""
    return build_kernels(OPS, tmp_path_factory.mktemp("kernels"), levels=host_levels()[-1:])


@pytest.fixture(scope="session")
def kernels(built: KernelLibrary) -> NativeLibrary:
    """The library loaded into this process, on one thread."""
    library = NativeLibrary(Path(built.path))
    library.set_threads(1)
    return library
