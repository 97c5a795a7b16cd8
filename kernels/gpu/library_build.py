"""Build the custom-op library of a model: runtime, table and kernel images in one file.

The domain is a digest of sources and flags, so that a model can name it before compilation.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from tracea_graph.config import Environment
from tracea_graph.errors import BuildError
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.block_times import FLAG, with_block_times
from tracea_graph.kernels.gpu.cubin import why_not_launchable
from tracea_graph.kernels.gpu.dialect import CUDA, Dialect, Target
from tracea_graph.kernels.gpu.emitter import emit_kernel, shared_of
from tracea_graph.kernels.gpu.kernel_selection import Kernel, kernel_from_name, key_of
from tracea_graph.kernels.gpu.kernel_source import KernelSource
from tracea_graph.kernels.gpu.nvrtc import compile_sources, find_nvrtc
from tracea_graph.kernels.gpu.standalone_functions import DeviceFunction, functions_of
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, LibraryContents, OpType
from tracea_graph.kernels.runtime import header
from tracea_graph.temporary_files import ScratchFolder
from tracea_graph.toolchain.compilers import COMPILE_SECONDS, Compiler, find_compiler
from tracea_graph.toolchain.library_artifact import Library, LibraryManifest, LibraryPart
from tracea_graph.toolchain.linking import ENTRY, entry_flags, link_parts, read_output
from tracea_graph.toolchain.object_cache import ObjectCache, sha256_of_parts
from tracea_graph.version import VERSION

__all__ = ["Compile", "Image", "build_library", "compile_part", "cubins", "sources_of"]

_HERE = Path(__file__).parent
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti",
          "-fno-threadsafe-statics", "-fno-ident", "-Dtracea=tracea_on_gpu")  # fmt: skip
"""Compiler flags.  They rename the namespace of the runtime, because a library may also hold the
runtime of another backend, whose functions have the same names.
"""
_FUNCTIONS_SINCE = 12000
"""First version of CUDA whose driver has all functions that the runtime calls (12000: 12.0)."""
_LIBRARIES = ("-Wl,--as-needed", "-ldl", "-lpthread", "-lm", "-lc")
_INCLUDE = re.compile(r'^\s*#\s*include\s+"(runtime/[a-z0-9_]+\.h)"', re.MULTILINE)
_ZLIB_LEVEL = 6
"""Compression level of images: 9 takes five times as long and saves 2 % more."""


@dataclass(frozen=True)
class Image:
    """A compiled kernel: the binary that the driver loads, and the kernel's symbol in it."""

    symbol: str
    data: bytes

    @cached_property
    def packed(self) -> bytes:
        """The binary as libraries store it: a zlib stream."""
        return zlib.compress(self.data, _ZLIB_LEVEL)


Compile = Callable[[Sequence[KernelSource], str, Environment], list[Image]]
"""A function that compiles kernels to images for an architecture, or to PTX for newer ones."""


def sources_of(
    contents: LibraryContents, levels: Sequence[str], dialect: Dialect = CUDA
) -> dict[str, list[KernelSource]]:
    """Generate the sources of the kernels that each level can run, sorted by symbol.

    Kernels that need more shared memory than a block of the level has are left out: tiles tuned on
    another architecture, for which a plan has alternatives.
    """
    found = _kernels(contents)
    targets = {level: Target(dialect, ARCHITECTURES[level]) for level in levels}
    return {name: [emit_kernel(*k, t) for k in _able(found, t)] for name, t in targets.items()}


def _able(kernels: Sequence[Kernel], target: Target) -> Iterator[tuple[Call, Variant]]:
    """Yield the kernels that a target can run."""
    for kernel in kernels:
        fits = shared_of(kernel.call, kernel.variant) <= target.architecture.block_shared
        if fits and not kernel.variant.refusal(target.architecture):
            yield kernel.call, kernel.variant


def _kernels(contents: LibraryContents) -> list[Kernel]:
    """Return each kernel once, sorted by symbol."""
    by_key = {chain.key: chain for chain in contents.chains}
    found = {
        k.symbol: k for k in (kernel_from_name(name, by_key) for name in sorted(contents.kernels))
    }
    return [kernel for _, kernel in sorted(found.items())]


def cubins(sources: Sequence[KernelSource], target: str, environment: Environment) -> list[Image]:
    """Compile kernels with NVRTC.  Raises BuildError if one cannot be launched.

    Kernels that use local memory are accepted: they are slower, not wrong.
    """
    built = compile_sources(sources, [target], environment)
    for one in built:
        if one.refused and one.facts:
            known = replace(one.facts, stack=0)
            source, architecture = one.source, ARCHITECTURES[target]
            if why := why_not_launchable(known, architecture, source.threads, source.shared):
                raise BuildError(why)
    return [Image(one.source.symbol, one.data) for one in built]


def build_library(
    contents: LibraryContents,
    levels: Sequence[str],
    out: Path,
    environment: Environment,
    compiled: Compile = cubins,
    dialect: Dialect = CUDA,
) -> Library:
    """Compile what the cache lacks, link, and move the library to ``out``.

    Raises BuildError and leaves no file at ``out`` on failure.
    """
    start = time.perf_counter()
    with ScratchFolder("build") as name:
        folder = Path(name)
        part = compile_part(contents, levels, folder, environment, compiled, dialect)
        made = link_parts([part], out, find_compiler(environment), folder)
    return replace(made, seconds=time.perf_counter() - start)


def compile_part(
    contents: LibraryContents,
    levels: Sequence[str],
    folder: Path,
    environment: Environment,
    compiled: Compile = cubins,
    dialect: Dialect = CUDA,
    entry: str = ENTRY,
) -> LibraryPart:
    """Write the objects of a library to ``folder``.

    ``entry`` is the name of the function that registers the op types.  Raises BuildError.
    """
    compiler, timed = find_compiler(environment), environment.task_times
    sources = _recorded(sources_of(contents, levels, dialect), dialect, timed)
    flags = (*entry_flags(entry), *((FLAG,) if timed else ()))
    least = find_nvrtc().cuda[0] * 1000 if dialect is CUDA else _FUNCTIONS_SINCE
    facts: LibraryManifest = {
        "version": VERSION,
        "levels": list(levels),
        "driver": least,
        "types": [[t.name, [d.onnx for d in (*t.inputs, *t.outputs)]] for t in contents.types],
        "runtime": sha256_of_parts(*_FLAGS, *flags, *_runtime()),
        "sources": {s.symbol: sha256_of_parts(s.text) for level in levels for s in sources[level]},
    }
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    domain = f"tracea.{hashlib.sha256(text.encode()).hexdigest()[:10]}"
    symbols = [kernel.symbol for kernel in _kernels(contents)]
    images = [_images(compiled, sources, level, environment) for level in levels]
    if dialect is CUDA:  # PTX for newer architectures
        newest = {levels[-1]: _text_sources(contents, levels[-1])}
        images.append(_text(_recorded(newest, dialect, timed), environment))
    held = () if contents.types else functions_of(contents.kernels)
    cache = ObjectCache(environment.cache / "objects")
    _compile_runtime(compiler, cache, folder, flags)
    (folder / "images.bin").write_bytes(_laid_out(images))
    table = _table(domain, least, contents.types, symbols, levels, images, held)
    (folder / "table.cpp").write_text(table, encoding="utf-8")
    own = (*_FLAGS, "-I.", "-c", "table.cpp", "-o", "table.o")
    compiler.run(own, folder, COMPILE_SECONDS)
    objects = (folder / "runtime.o", folder / "table.o")
    return LibraryPart(entry, domain, tuple(levels), objects, len(symbols), facts, _LIBRARIES)


def _images(
    compiled: Compile, sources: dict[str, list[KernelSource]], level: str, environment: Environment
) -> list[Image]:
    return compiled(sources[level], level, environment) if sources[level] else []


def _recorded(
    sources: dict[str, list[KernelSource]], dialect: Dialect, timed: bool
) -> dict[str, list[KernelSource]]:
    """Return the kernels of each level, which record their blocks if ``timed``."""
    if not timed:
        return sources
    return {level: [with_block_times(s, dialect) for s in own] for level, own in sources.items()}


def _text_sources(contents: LibraryContents, level: str) -> list[KernelSource]:
    """Generate those kernels of the newest level that newer GPUs can run."""
    target, own = Target(CUDA, ARCHITECTURES[level]), _kernels(contents)
    return [emit_kernel(c, v, target) for c, v in _able(own, target) if not v.exact]


def _text(sources: dict[str, list[KernelSource]], environment: Environment) -> list[Image]:
    """Compile the kernels of a level to PTX."""
    ((level, own),) = sources.items()
    return cubins(own, f"compute_{ARCHITECTURES[level].capability}", environment) if own else []


# ---- the runtime -----------------------------------------------------------------------------


def _headers(text: str) -> dict[str, str]:
    """Return all headers that a source includes, transitively: name to text."""
    found: dict[str, str] = {}
    todo = _INCLUDE.findall(text)
    while todo:
        name = todo.pop()
        if name not in found:
            found[name] = header(_HERE, name)
            todo += _INCLUDE.findall(found[name])
    return dict(sorted(found.items()))


def _runtime() -> list[str]:
    """Return the sources of the runtime, with its headers."""
    text = (_HERE / "runtime" / "runtime.cpp").read_text(encoding="utf-8")
    return [text, *(part for item in _headers(text).items() for part in item)]


def _compile_runtime(
    compiler: Compiler, cache: ObjectCache, folder: Path, own: Sequence[str]
) -> None:
    """Write ``runtime.o`` and the headers to the folder."""
    text = (_HERE / "runtime" / "runtime.cpp").read_text(encoding="utf-8")
    (folder / "runtime").mkdir()
    for name, held in _headers(text).items():
        (folder / name).write_text(held, encoding="utf-8")
    flags = (*_FLAGS, *own)
    key = sha256_of_parts(compiler.identity, *compiler.command, *flags, *_runtime())
    data = cache.get(key)
    if data is None:
        (folder / "runtime.cpp").write_text(text, encoding="utf-8")
        command = (*flags, "-I.", "-c", "runtime.cpp", "-o", "runtime.o")
        compiler.run(command, folder, COMPILE_SECONDS)
        data = read_output(compiler, folder / "runtime.o", "object")
        cache.put(key, data)
    (folder / "runtime.o").write_bytes(data)


# ---- the generated sources --------------------------------------------------------------------


def _laid_out(images: Sequence[Sequence[Image]]) -> bytes:
    """Concatenate all compressed images."""
    return b"".join(image.packed for level in images for image in level) or b"\0"


def _table(
    domain: str,
    driver: int,
    types: Collection[OpType],
    symbols: Sequence[str],
    levels: Sequence[str],
    images: Sequence[Sequence[Image]],
    functions: Sequence[DeviceFunction],
) -> str:
    """Generate the source of the library's table."""
    lines = ['#include "runtime/table.h"', "namespace {"]
    for i, kind in enumerate(types):
        elements = ", ".join(str(d.onnx) for d in (*kind.inputs, *kind.outputs)) or "0"
        lines.append(f"const int32_t elements{i}[] = {{{elements}}};")
    rows = [f'{{"{t.name}", {len(t.inputs)}, {len(t.outputs)}, elements{i}}}'
            for i, t in enumerate(types)]  # fmt: skip
    lines.append(f"const tracea_op_type types[] = {{{', '.join((*rows, '{}'))}}};")
    at, rows_of = 0, list[dict[str, str]]()
    for level in images:
        rows_of.append({})
        for image in level:
            stored = len(image.packed)
            held = f'{{{at}, {stored}, {len(image.data)}, "{image.symbol}"}}'
            rows_of[-1][image.symbol.rpartition("__")[0]] = held
            at += stored
    order = sorted(range(len(symbols)), key=lambda i: key_of(symbols[i]))
    for i in range(len(symbols)):
        held = ", ".join(row.get(symbols[i], '{0, 0, 0, ""}') for row in rows_of)
        lines.append(f"const tracea_gpu_image images{i}[] = {{{held}}};")
    kernels = ", ".join((*(f"{{{key_of(symbols[i])}, images{i}}}" for i in order), "{}"))
    lines.append(f"const tracea_gpu_kernel kernels[] = {{{kernels}}};")
    words = "".join(f"{word}, " for f in functions for word in f.words)
    lines.append(f"const int64_t words[] = {{{words}0}};")
    starts = accumulate((len(f.words) for f in functions), initial=0)
    rows = [f"{{{', '.join(map(str, f.key))}, {len(f.words)}, words + {start}}}"
            for f, start in zip(functions, starts, strict=False)]  # fmt: skip
    lines.append(f"const tracea_gpu_function functions[] = {{{', '.join((*rows, '{}'))}}};")
    told = [(ARCHITECTURES[name], 0) for name in levels]
    told += [(ARCHITECTURES[levels[-1]], 1)] * (len(images) - len(levels))
    made = ", ".join(f"{{{a.capability}, {int(a.name.endswith('a'))}, {t}}}" for a, t in told)
    lines += [
        f"const tracea_gpu_level levels[] = {{{made}}};", "}",
        f'extern "C" const tracea_gpu_library tracea_gpu_table = {{"{domain}", {driver}, '
        f"{len(told)}, {len(types)}, {len(symbols)}, levels, types, kernels, "
        f"{len(functions)}, functions}};",
        'asm(".section .rodata\\n.global tracea_gpu_images\\n.hidden tracea_gpu_images\\n"',
        '    "tracea_gpu_images:\\n.incbin \\"images.bin\\"\\n.previous\\n");', "",
    ]  # fmt: skip
    return "\n".join(lines)
