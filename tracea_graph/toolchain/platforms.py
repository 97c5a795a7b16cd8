"""Platforms that libraries are built for: operating system, processor architecture, C library.

Libraries for other platforms than this machine's are cross-compiled by zig, which has the headers
and libraries of all of them.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

__all__ = ["ENDINGS", "HERE", "PLATFORMS", "Platform", "library_paths"]

_SUFFIXES = MappingProxyType({"linux": ".so", "windows": ".dll", "macos": ".dylib"})


@dataclass(frozen=True)
class Platform:
    """A platform that libraries can be built for.

    ``triple`` is zig's name for it, including the oldest system version that libraries run on.
    ``flags`` are compiler flags.
    """

    system: str
    machine: str
    triple: str
    libc: str = ""
    flags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The platform as options name it, such as ``linux-aarch64``."""
        return "-".join(filter(None, (self.system, self.machine, self.libc)))

    @property
    def suffix(self) -> str:
        """The suffix of its shared libraries."""
        return _SUFFIXES[self.system]

    @property
    def ending(self) -> str:
        """End of a library's file name, for a model with several libraries of one suffix."""
        return f".{'-'.join(filter(None, (self.machine, self.libc)))}{self.suffix}"

    @property
    def libraries(self) -> tuple[str, ...]:
        """Flags of the libraries that zig links besides the C library."""
        return () if self.system == "macos" else ("-lpthread",)

    @property
    def link_flags(self) -> tuple[str, ...]:
        """Flags that link objects to a shared library."""
        if self.system == "linux":
            return ("-shared", "-s", "-Wl,--build-id=none", "-Wl,-z,relro", "-Wl,-z,now")
        return ("-shared", "-s")


_ALL = (
    Platform("linux", "x86_64", "x86_64-linux-gnu.2.17"),
    Platform("linux", "aarch64", "aarch64-linux-gnu.2.17"),
    Platform("linux", "x86_64", "x86_64-linux-musl", "musl"),
    Platform("linux", "aarch64", "aarch64-linux-musl", "musl"),
    Platform("windows", "x86_64", "x86_64-windows-gnu"),
    Platform("windows", "aarch64", "aarch64-windows-gnu"),
    Platform("macos", "aarch64", "aarch64-macos.11.0"),
    Platform("macos", "x86_64", "x86_64-macos.11.0"),
)
PLATFORMS: Mapping[str, Platform] = MappingProxyType({p.name: p for p in _ALL})
"""Platforms by name."""

ENDINGS = tuple(dict.fromkeys((*_SUFFIXES.values(), *(p.ending for p in _ALL))))
"""What the names of libraries may end in."""


def _here() -> Platform:
    systems = {"win32": "windows", "darwin": "macos"}
    machines = {"amd64": "x86_64", "arm64": "aarch64"}
    machine = platform.machine().lower()
    system, machine = systems.get(sys.platform, "linux"), machines.get(machine, machine)
    libc = "musl" if system == "linux" and Path(f"/lib/ld-musl-{machine}.so.1").exists() else ""
    name = "-".join(filter(None, (system, machine, libc)))
    return PLATFORMS.get(name) or Platform(system, machine, "native", libc)


HERE = _here()
"""This machine's platform."""


def library_paths(out: Path, platforms: tuple[Platform, ...]) -> tuple[Path, ...]:
    """Return where to write a model's libraries for several platforms, in their order.

    ``out`` is the path of the model.  The first library with a certain suffix is named like the
    model; the names of others with that suffix end with :attr:`Platform.ending`.
    """
    taken = set[str]()
    places = []
    for one in platforms:
        places.append(out.with_suffix(one.ending if one.suffix in taken else one.suffix))
        taken.add(one.suffix)
    return tuple(places)
