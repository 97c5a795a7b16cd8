"""Compile GPU kernels with NVRTC: a cubin for each architecture, and PTX for newer ones.

Compilation needs neither a GPU nor the CUDA toolkit, only the packages of the extra ``cuda``.  A
cubin runs with drivers of NVRTC's CUDA major version or newer.  Objects are cached.
"""

from __future__ import annotations

import functools
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tracea_graph.config import Environment, usable_processors
from tracea_graph.errors import BuildError
from tracea_graph.kernels.gpu import nvrtc_main
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.cubin import KernelFacts, read_cubin, why_not_launchable
from tracea_graph.kernels.gpu.kernel_source import KernelSource
from tracea_graph.temporary_files import ScratchFolder
from tracea_graph.toolchain.compilers import COMPILE_SECONDS, run_command
from tracea_graph.toolchain.object_cache import ObjectCache, sha256_of_parts

__all__ = ["Built", "Nvrtc", "compile_sources", "find_nvrtc"]

_WORKER = Path(nvrtc_main.__file__)
_MOST_OF_A_PROCESS = 16
"""Number of kernels that one process compiles within the time limit."""
_START_SECONDS = 60.0


@dataclass(frozen=True)
class Nvrtc:
    """A working NVRTC: its CUDA version, and the packages that provide it."""

    cuda: tuple[int, int]
    capabilities: tuple[int, ...]
    packages: tuple[str, ...]


@dataclass(frozen=True)
class Built:
    """A kernel compiled for a ``target``: a cubin for ``sm_90a``, PTX for ``compute_90``.

    ``facts`` are its registers and memory, None for PTX.  ``refused`` is the reason not to launch
    the kernel, or None.
    """

    source: KernelSource
    target: str
    data: bytes
    log: str
    facts: KernelFacts | None
    refused: str | None


@functools.cache
def find_nvrtc() -> Nvrtc:
    """Find the NVRTC of this Python environment.  Raises BuildError if none works."""
    try:
        answer = run_command(_command(), Path.cwd(), _START_SECONDS)
    except BuildError as error:
        raise BuildError(
            'NVRTC, which compiles GPU kernels, cannot be used; pip install "tracea-graph[cuda]".',
            error.command,
            error.stderr,
        ) from error
    found = json.loads(answer)
    major, minor = found["cuda"]
    return Nvrtc((major, minor), tuple(found["capabilities"]), tuple(found["packages"]))


def compile_sources(
    sources: Sequence[KernelSource],
    targets: Sequence[str],
    environment: Environment | None = None,
    seconds: float = COMPILE_SECONDS,
) -> list[Built]:
    """Compile every source for every target; return source by source the object of each target.

    Objects in the cache are reused.  Raises BuildError with the compiler's message if a source
    does not compile.
    """
    cache = ObjectCache((environment or Environment()).cache / "cubins")
    identity = repr((find_nvrtc(), nvrtc_main.OPTIONS))
    jobs = [(source, target) for source in sources for target in targets]
    keys = [sha256_of_parts(identity, target, source.text) for source, target in jobs]
    found = {key: cache.get(key) for key in keys}
    missing = {
        key: job for key, job in zip(keys, jobs, strict=True) if found[key] is None
    }  # compile equal texts once
    for share in _compile(missing, seconds):
        for key, data in share.items():
            cache.put(key, data)
        found |= share
    pairs = zip(keys, jobs, strict=True)
    return [_built(source, target, found[key] or b"") for key, (source, target) in pairs]


def _built(source: KernelSource, target: str, stored: bytes) -> Built:
    log, data = _apart(stored)
    if target not in ARCHITECTURES:
        return Built(source, target, data, log, None, None)
    (facts,) = read_cubin(data)
    reason = why_not_launchable(facts, ARCHITECTURES[target], source.threads, source.shared)
    return Built(source, target, data, log, facts, reason)


def _compile(
    jobs: dict[str, tuple[KernelSource, str]], seconds: float
) -> Iterator[dict[str, bytes]]:
    """Compile in as many processes as there are processors; yield each object with its key.

    Each process compiles several kernels, because starting NVRTC takes longer than compiling a
    small kernel.  A process has a time limit of ``seconds``.
    """
    processes = max(1, min(usable_processors(), len(jobs) // 4))
    parts = max(processes, -(-len(jobs) // _MOST_OF_A_PROCESS))
    shares = [list(jobs.items())[i::parts] for i in range(parts)]
    with ThreadPoolExecutor(processes) as pool:
        yield from pool.map(lambda share: _compile_share(share, seconds), shares)


def _compile_share(
    jobs: list[tuple[str, tuple[KernelSource, str]]], seconds: float
) -> dict[str, bytes]:
    if not jobs:
        return {}
    with ScratchFolder("nvrtc") as name:
        folder = Path(name)
        for number, (_, (source, _)) in enumerate(jobs):
            (folder / f"{number}.cu").write_text(source.text, encoding="utf-8")
        rows = [[number, target] for number, (_, (_, target)) in enumerate(jobs)]
        (folder / "jobs.json").write_text(json.dumps(rows), encoding="utf-8")
        run_command(_command(folder), folder, seconds)
        return {
            key: _collect(folder / f"{number}.{target}", source, target)
            for number, (key, (source, target)) in enumerate(jobs)
        }


def _collect(path: Path, source: KernelSource, target: str) -> bytes:
    """Read a job's object and log from its files, as one byte string."""
    log = path.with_name(f"{path.name}.log").read_text(encoding="utf-8")
    if not path.exists():
        message = f"NVRTC does not compile {source.symbol} for {target}."
        raise BuildError(message, shlex.join(_command()), log)
    words = log.encode()
    return len(words).to_bytes(8, "little") + words + path.read_bytes()


def _apart(stored: bytes) -> tuple[str, bytes]:
    size = int.from_bytes(stored[:8], "little")
    return stored[8 : 8 + size].decode(), stored[8 + size :]


def _command(*arguments: Path) -> tuple[str, ...]:
    return (sys.executable, "-P", str(_WORKER), *map(str, arguments))
