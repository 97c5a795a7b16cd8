"""Build stand-alone libraries of kernels, with headers and a CMake package."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from tracea_graph.config import Environment
from tracea_graph.errors import UsageError, did_you_mean
from tracea_graph.kernels.kernel_metadata import KernelMetadata
from tracea_graph.kernels.runtime import (
    PUBLIC_HEADERS,
    RUNTIME_HEADER,
    RUNTIME_SOURCE,
    abi_version,
    public_header,
)
from tracea_graph.target import HOST, target_of
from tracea_graph.temporary_files import ScratchFolder
from tracea_graph.toolchain import find_compiler
from tracea_graph.toolchain.linking import LINK_FLAGS, OWN_LINK_FLAGS, read_output
from tracea_graph.toolchain.object_cache import write_atomically
from tracea_graph.version import VERSION

__all__ = ["KernelLibrary", "build_kernels", "known_ops", "list_kernels", "show_kernel"]

_NAME, _RUNTIME = "libtracea_kernels.so", "libtracea_runtime.so"
_RUNTIME_FLAGS = (
    "-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti",
    "-fno-ident", "-I.",
)  # fmt: skip
_CONFIG = Template("""\
# find_package(tracea CONFIG), then target_link_libraries(NAME tracea::kernels).
get_filename_component(_tracea_prefix "$${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET tracea::kernels)
  add_library(tracea::kernels SHARED IMPORTED)
  set_target_properties(tracea::kernels PROPERTIES
    IMPORTED_LOCATION "$${_tracea_prefix}/lib/$library"
    IMPORTED_NO_SONAME TRUE
    INTERFACE_INCLUDE_DIRECTORIES "$${_tracea_prefix}/include")
  add_library(tracea::runtime SHARED IMPORTED)
  set_target_properties(tracea::runtime PROPERTIES
    IMPORTED_LOCATION "$${_tracea_prefix}/lib/$runtime"
    IMPORTED_NO_SONAME TRUE
    INTERFACE_INCLUDE_DIRECTORIES "$${_tracea_prefix}/include")
endif()
set(tracea_OPS $ops)
set(tracea_ISA_LEVELS $levels)
unset(_tracea_prefix)
""")
_VERSION = Template("""\
set(PACKAGE_VERSION "$version")
if(PACKAGE_FIND_VERSION_MAJOR STREQUAL "$major" AND
   NOT PACKAGE_FIND_VERSION VERSION_GREATER "$version")
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if(PACKAGE_FIND_VERSION VERSION_EQUAL "$version")
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
elseif(NOT PACKAGE_FIND_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
else()
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
endif()
""")


@dataclass(frozen=True)
class KernelLibrary:
    """A built library: its file, the operations and levels in it, and the seconds it took."""

    path: Path
    ops: tuple[str, ...]
    levels: tuple[str, ...]
    seconds: float

    @property
    def include(self) -> Path:
        """The folder of its headers."""
        return self.path.parents[1] / "include"


def known_ops(target: str = HOST) -> tuple[str, ...]:
    """Return the operations that a stand-alone library for a target can hold."""
    return target_of(target, "fp32").backend.standalone_ops


def build_kernels(
    ops: Sequence[str],
    folder: Path,
    *,
    target: str = HOST,
    environment: Environment | None = None,
    levels: Sequence[str] = (),
) -> KernelLibrary:
    """Write a kernel library to a folder: ``lib/``, ``include/`` and a CMake package.

    ``levels`` selects some of the target's levels, which makes the library smaller.  Raises
    UsageError for unknown operations, BuildError if a source does not compile.
    """
    found = target_of(target, "fp32")
    known = found.backend.standalone_ops
    for op in ops:
        if op not in known:
            which = did_you_mean(op, known) or f"; there are {', '.join(known) or 'none'}"
            raise UsageError(f"a library for {target} cannot hold {op!r}{which}")
    held = tuple(op for op in known if op in ops)
    contents = found.backend.standalone(held)
    path = folder / "lib" / _NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    built = found.backend.build(
        contents, levels or found.levels, path, environment or Environment()
    )
    made = KernelLibrary(path, held, built.levels, built.seconds)
    runtime = path.with_name(_RUNTIME)
    _build_runtime(runtime, environment or Environment(), found.backend.device_runtime())
    facts = found.backend.metadata(
        built.levels, tuple(contents.kernels), environment or Environment()
    )
    _write_headers(made)
    _write_package(made, facts)
    return made


def list_kernels(target: str = HOST, op: str | None = None) -> tuple[KernelMetadata, ...]:
    """Return the metadata of every kernel variant of a target, without compiling any.

    ``op`` selects those of one operation.  Raises UsageError if there are none.
    """
    found = target_of(target, "fp32")
    kernels = found.backend.metadata(found.levels)
    known = dict.fromkeys(one.op for one in kernels)
    if op is not None and op not in known:
        which = did_you_mean(op, known) or f"; there are {', '.join(sorted(known))}"
        raise UsageError(f"{target} has no kernels for {op!r}{which}")
    return tuple(one for one in kernels if op in (None, one.op))


def show_kernel(
    name: str, target: str = HOST, environment: Environment | None = None
) -> KernelMetadata:
    """Compile one kernel variant and return its metadata, including those of the machine code.

    Raises UsageError for an unknown name, BuildError if it does not compile.
    """
    found = target_of(target, "fp32")
    known = {one.name: one for one in found.backend.metadata(found.levels)}
    if name not in known:
        which = did_you_mean(name, known) or "; tracea kernels list names all"
        raise UsageError(f"{target} has no kernel {name!r}{which}")
    levels = (known[name].level,)
    (shown,) = found.backend.metadata(levels, (name,), environment or Environment())
    return shown


def _build_runtime(out: Path, environment: Environment, devices: Mapping[str, str]) -> None:
    """Compile the library with the functions of ``tsr.h``, which loads others as modules.

    ``devices`` are the sources and headers of a backend's devices.
    """
    compiler = find_compiler(environment)
    with ScratchFolder("build") as name:
        folder = Path(name)
        (folder / "runtime").mkdir()
        for header in (*PUBLIC_HEADERS, RUNTIME_HEADER):
            (folder / "runtime" / header).write_text(public_header(header), encoding="utf-8")
        for name, text in devices.items():
            (folder / name).write_text(text, encoding="utf-8")
        sources = (RUNTIME_SOURCE, *(name for name in devices if name.endswith(".cpp")))
        (folder / RUNTIME_SOURCE).write_text(public_header(RUNTIME_SOURCE), encoding="utf-8")
        own = OWN_LINK_FLAGS[compiler.family]
        libraries = ("-ldl", "-lpthread") if devices else ()
        flags = (*_RUNTIME_FLAGS, *LINK_FLAGS)
        compiler.run((*flags, *sources, "-o", _RUNTIME, *own, *libraries), folder)
        write_atomically(out, read_output(compiler, folder / _RUNTIME, "library"), mode=0o755)


def _write_headers(library: KernelLibrary) -> None:
    library.include.mkdir(exist_ok=True)
    for name in PUBLIC_HEADERS:
        write_atomically(library.include / name, public_header(name).encode())


def _write_package(library: KernelLibrary, kernels: Sequence[KernelMetadata]) -> None:
    folder = library.path.parent / "cmake" / "tracea"
    folder.mkdir(parents=True, exist_ok=True)
    major, minor = abi_version()
    words = {"library": _NAME, "runtime": _RUNTIME, "version": f"{major}.{minor}", "major": major}
    lists = {"ops": ";".join(library.ops), "levels": ";".join(library.levels)}
    write_atomically(folder / "tracea-config.cmake", _CONFIG.substitute(words | lists).encode())
    write_atomically(folder / "tracea-config-version.cmake", _VERSION.substitute(words).encode())
    facts = {
        "tool": VERSION, "abi": f"{major}.{minor}", "ops": library.ops, "levels": library.levels,
        "kernels": [one.to_json() for one in kernels],
    }  # fmt: skip
    text = json.dumps(facts, indent=1) + "\n"
    write_atomically(library.path.with_suffix(".json"), text.encode())
