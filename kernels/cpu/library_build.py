"""Build the custom-op library of a model: runtime, micro-kernels and type table in one file.

Sources and flags alone decide the domain (:func:`domain_of`), so a model can name it before
anything is compiled.  The same inputs and compiler give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tracea_graph.config import Environment, usable_processors
from tracea_graph.errors import BuildError
from tracea_graph.kernels import chain_source
from tracea_graph.kernels.cpu import emitter, library_table
from tracea_graph.kernels.cpu.combined_compilation_units import combined_units
from tracea_graph.kernels.cpu.emitter import CompilationUnit
from tracea_graph.kernels.cpu.host_loop_units import units_for
from tracea_graph.kernels.cpu.isa_levels import COMMON_FLAGS, FAMILIES, LEVELS, isa_of
from tracea_graph.kernels.cpu.precompiled_header import (
    USES,
    header_flags,
    precompiled,
    takes_intrinsics,
)
from tracea_graph.kernels.cpu.variants import NO_TILES, Tiles
from tracea_graph.kernels.program import NO_CONTENTS, LibraryContents
from tracea_graph.kernels.runtime import header
from tracea_graph.temporary_files import ScratchFolder
from tracea_graph.toolchain.compilers import (
    COMPILE_SECONDS,
    Compiler,
    find_compiler,
    kill_running_commands,
)
from tracea_graph.toolchain.library_artifact import (
    Counted,
    Library,
    LibraryManifest,
    LibraryPart,
    ignore_progress,
)
from tracea_graph.toolchain.linking import (
    ENTRY,
    entry_flags,
    link_flags,
    link_parts,
    read_output,
)
from tracea_graph.toolchain.object_cache import ObjectCache, sha256_of_parts
from tracea_graph.toolchain.platforms import HERE, Platform
from tracea_graph.version import VERSION

__all__ = ["build_ahead", "build_library", "compile_part", "domain_of", "manifest"]

_KERNELS = Path(emitter.__file__).resolve().parent
_FLAGS = ("-fno-ident",)
_RUNTIME_FLAGS = (*COMMON_FLAGS, "-O2", "-fno-threadsafe-statics")
_NO_DOMAIN = "tracea.0000000000"
_INCLUDE = re.compile(r'^\s*#\s*include\s+"((?:runtime/)?[a-z0-9_]+\.h)"', re.MULTILINE)


def manifest(
    contents: LibraryContents,
    isas: Sequence[str],
    *,
    quick: bool = False,
    tiles: Tiles = NO_TILES,
    entry: str = ENTRY,
    platform: Platform = HERE,
) -> LibraryManifest:
    """Return the facts that determine the custom-op domain of a library.

    These are the tool's version, levels, op types, flags, and digests of all sources.
    """
    units = _units(contents, isas, _NO_DOMAIN, quick, tiles, entry, platform)
    ordered = sorted(contents.types, key=lambda t: t.name)
    return {
        "version": VERSION,
        "isas": _levels(isas, platform),
        "types": [
            [t.name, [d.onnx for d in t.inputs], [d.onnx for d in t.outputs]] for t in ordered
        ],
        "flags": [*_FLAGS, *link_flags(platform)],
        "sources": {unit.symbol: _content_key(unit) for unit in units},
    }


def domain_of(manifest: LibraryManifest) -> str:
    """Return the domain: ``tracea.`` and the first ten hex digits of the manifest's SHA-256."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return f"tracea.{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def build_library(
    contents: LibraryContents,
    isas: Sequence[str],
    out: Path,
    *,
    environment: Environment | None = None,
    seconds: float = COMPILE_SECONDS,
    quick: bool = False,
    tiles: Tiles = NO_TILES,
    counted: Counted = ignore_progress,
    platform: Platform = HERE,
    domain: str = "",
) -> Library:
    """Compile the objects that the cache lacks, link them, and write the library to ``out``.

    Its kernels are named as in ``functions.KERNELS``.  A kernel with several tiles is built with
    the one in ``tiles``, else with the first in ``variants``.

    ``seconds`` limits each compiler run; ``quick`` trades kernel speed for compile time.
    ``counted`` is called with the number of compiled units and of all that the cache lacks.
    ``domain`` is shared by libraries for several platforms.  Raises BuildError, leaving nothing at
    ``out``.
    """
    start = time.perf_counter()
    environment = environment or Environment()
    with ScratchFolder("build") as name:
        part = compile_part(
            contents, isas, Path(name), environment=environment, seconds=seconds,
            quick=quick, tiles=tiles, counted=counted, platform=platform, domain=domain,
        )  # fmt: skip
        compiler = find_compiler(environment, seconds, platform)
        made = link_parts([part], out, compiler, Path(name), seconds, platform)
    return replace(made, seconds=time.perf_counter() - start)


def compile_part(
    contents: LibraryContents,
    isas: Sequence[str],
    folder: Path,
    *,
    environment: Environment,
    seconds: float = COMPILE_SECONDS,
    quick: bool = False,
    tiles: Tiles = NO_TILES,
    entry: str = ENTRY,
    counted: Counted = ignore_progress,
    platform: Platform = HERE,
    domain: str = "",
) -> LibraryPart:
    """Write the objects of a library to ``folder``.

    ``entry`` is the name of the function that registers the op types.  The other parameters are
    those of :func:`build_library`.  Raises BuildError.
    """
    compiler = find_compiler(environment, seconds, platform)
    cache = ObjectCache(environment.cache / "objects")
    facts = manifest(contents, isas, quick=quick, tiles=tiles, entry=entry, platform=platform)
    domain = domain or domain_of(facts)
    units = _units(contents, isas, domain, quick, tiles, entry, platform)
    fresh = _compile(_Shop(compiler, cache, folder, seconds), units, counted)
    objects = tuple(folder / f"{i}.o" for i in range(len(units)))
    return LibraryPart(entry, domain, tuple(_levels(isas, platform)), objects, fresh, facts)


def build_ahead(
    isas: Sequence[str],
    environment: Environment,
    stopped: Callable[[], bool],
    contents: LibraryContents = NO_CONTENTS,
) -> None:
    """Compile what all libraries have in common, one unit at a time, until ``stopped``.

    These are the runtime and one precompiled header per level, the highest level's first; then
    the kernels and chains of ``contents``.  Errors are ignored, because the build runs into them
    too and reports them.
    """
    with suppress(BuildError), ScratchFolder("build") as name:
        compiler, cache = find_compiler(environment), ObjectCache(environment.cache / "objects")
        shop = _Shop(compiler, cache, Path(name), COMPILE_SECONDS)
        runtime = CompilationUnit("runtime", _runtime(), _RUNTIME_FLAGS)
        flags = [(*COMMON_FLAGS, *isa_of(isa).flags) for isa in isas[::-1] if isa_of(isa).flags]
        headers: dict[tuple[str, ...], Future[tuple[str, ...]]] = {}
        for one in flags[:1]:
            headers[one] = _done(shop.header("header0", one, make=True))
        if not stopped() and cache.get(object_key(compiler, runtime)) is None:
            shop.make(0, runtime, None)
        for i, one in enumerate(flags[1:], 1):
            if not stopped():
                headers[one] = _done(shop.header(f"header{i}", one, make=True))
        for i, unit in enumerate(
            emitter.compilation_units(contents.kernels, contents.chains, isas), 1
        ):
            if stopped():
                break
            if cache.get(object_key(compiler, unit)) is None:
                uses = takes_intrinsics(unit.text)
                shop.make(i, unit, headers.get(header_flags(unit.flags)) if uses else None)


def _done(flags: tuple[str, ...]) -> Future[tuple[str, ...]]:
    """The flags of a header that was made, as :meth:`_Shop.make` waits for them."""
    known = Future[tuple[str, ...]]()
    known.set_result(flags)
    return known


def _runtime(unit: str = "runtime") -> str:
    return (_KERNELS / "runtime" / f"{unit}.cpp").read_text(encoding="utf-8")


def _levels(isas: Sequence[str], platform: Platform) -> list[str]:
    """The named levels of the platform's processors, lowest first."""
    own = [f.levels for f in FAMILIES if f.name == platform.machine]
    known = [isa.name for isa in (own[0] if own else LEVELS)]
    if not isas or not set(isas) <= set(known):
        raise BuildError(f"Libraries are built for {', '.join(known)}, not for {list(isas)}.")
    return [name for name in known if name in isas]


def _units(
    contents: LibraryContents,
    isas: Sequence[str],
    domain: str,
    quick: bool,
    tiles: Tiles = NO_TILES,
    entry: str = ENTRY,
    platform: Platform = HERE,
) -> list[CompilationUnit]:
    levels = _levels(isas, platform)
    units = emitter.compilation_units(contents.kernels, contents.chains, levels, tiles)
    return [
        CompilationUnit("runtime", _runtime(), (*_RUNTIME_FLAGS, *entry_flags(entry))),
        *(
            CompilationUnit(f"{u}_loops", _runtime(f"{u}_loops"), _RUNTIME_FLAGS)
            for u in units_for(frozenset(contents.kernels))
        ),
        CompilationUnit(
            "table",
            library_table.table_source(domain, contents, isas, tiles),
            _RUNTIME_FLAGS,
        ),
        *(combined_units(units) if quick else units),
    ]


def _headers(text: str) -> dict[str, str]:
    """Every project header that a source includes, directly or indirectly: name to text."""
    found: dict[str, str] = {}
    todo = _INCLUDE.findall(text)
    while todo:
        name = todo.pop()
        if name not in found:
            found[name] = header(_KERNELS, name)
            todo += _INCLUDE.findall(found[name])
    return dict(sorted(found.items()))


def _content_key(unit: CompilationUnit) -> str:
    headers = [part for item in _headers(unit.text).items() for part in item]
    return sha256_of_parts(*_FLAGS, *unit.flags, unit.text, *headers)


def object_key(compiler: Compiler, unit: CompilationUnit) -> str:
    """The object cache's key for a unit compiled by a compiler."""
    return sha256_of_parts(compiler.identity, *compiler.command, _content_key(unit))


def compiled_object(
    unit: CompilationUnit, environment: Environment, seconds: float = COMPILE_SECONDS
) -> bytes:
    """Return the object of one unit, compiled if the cache lacks it.  Raises BuildError."""
    compiler = find_compiler(environment, seconds)
    cache = ObjectCache(environment.cache / "objects")
    if (known := cache.get(object_key(compiler, unit))) is not None:
        return known
    with ScratchFolder("build") as name:
        _compile(_Shop(compiler, cache, Path(name), seconds), [unit], ignore_progress)
        return (Path(name) / "0.o").read_bytes()


@dataclass(frozen=True)
class _Shop:
    """Compiler, cache, folder and time limit in seconds of one build."""

    compiler: Compiler
    cache: ObjectCache
    folder: Path
    seconds: float

    def header(self, place: str, flags: tuple[str, ...], make: bool) -> tuple[str, ...]:
        """Return flags to use a precompiled header of the intrinsics; () if there is none.

        The header is stored in the build's subfolder ``place``.  If ``make``, it is compiled if
        missing.
        """
        folder = self.folder / place
        return precompiled(
            self.compiler, self.cache, (*_FLAGS, *flags), folder, self.seconds, make=make
        )

    def make(
        self, index: int, unit: CompilationUnit, header: Future[tuple[str, ...]] | None
    ) -> int:
        """Compile a unit to ``<folder>/<index>.o``, and add the object to the cache.

        Returns 0 if another thread has just done it, else 1.
        """
        key = object_key(self.compiler, unit)
        with self.cache.making(key):
            data = self.cache.get(key)
            fresh = data is None
            if data is None:
                data = self._compiled(index, unit, header)
                self.cache.put(key, data)
        (self.folder / f"{index}.o").write_bytes(data)
        return int(fresh)

    def _compiled(
        self, index: int, unit: CompilationUnit, header: Future[tuple[str, ...]] | None
    ) -> bytes:
        place = self.folder / str(index)
        (place / "runtime").mkdir(parents=True)
        for name, text in _headers(unit.text).items():
            (place / name).write_text(text, encoding="utf-8")
        (place / "unit.cpp").write_text(unit.text, encoding="utf-8")
        try:
            self._run(unit, place, header.result() if header else ())
        except BuildError as error:
            message = f"The kernel source {unit.symbol} did not compile: {error}"
            raise BuildError(message, error.command, error.stderr) from error
        return read_output(self.compiler, place / "unit.o", "object")

    def _run(self, unit: CompilationUnit, place: Path, header: tuple[str, ...]) -> None:
        foreign = chain_source.FLAGS if self.compiler.family != "gcc" else ()
        flags = (flag for flag in unit.flags if flag not in foreign)
        args = (*_FLAGS, *flags, *header, "-I.", "-c", "unit.cpp", "-o", "unit.o")
        try:
            self.compiler.run(args, place, self.seconds)
        except BuildError as error:
            # empty stderr: the compiler was stopped; else retry without the precompiled header
            if not header or not error.stderr:
                raise
            self._run(unit, place, ())


def _compile(shop: _Shop, units: Sequence[CompilationUnit], counted: Counted) -> int:
    """Compile every unit; return how many the cache lacked.  Raises the first BuildError."""
    missing: list[tuple[int, CompilationUnit]] = []
    for i, unit in enumerate(units):
        if (data := shop.cache.get(object_key(shop.compiler, unit))) is None:
            missing.append((i, unit))
        else:
            (shop.folder / f"{i}.o").write_bytes(data)
    waiting = [one for one in missing if takes_intrinsics(one[1].text)]
    plain = [one for one in missing if one not in waiting]
    uses = Counter(header_flags(unit.flags) for _, unit in waiting)
    work: list[Future[Any]] = []
    with ThreadPoolExecutor(usable_processors()) as pool:
        try:
            headers = {
                flags: pool.submit(shop.header, f"header{i}", flags, count >= USES)
                for i, (flags, count) in enumerate(uses.items())
            }
            work += headers.values()
            made = [pool.submit(shop.make, i, unit, None) for i, unit in plain]
            made += (
                pool.submit(shop.make, i, unit, headers[header_flags(unit.flags)])
                for i, unit in waiting
            )
            work += made
            for i, future in enumerate(as_completed(work)):
                future.result()
                counted(max(i + 1 - len(headers), 0), len(missing))
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            # a thread may be about to start one more compiler
            while isinstance(error, KeyboardInterrupt) and not all(f.done() for f in work):
                kill_running_commands()
                time.sleep(0.05)
            raise
    return sum(future.result() for future in made)
