"""Find a C++ compiler and run it: ``CXX``, g++, clang++, then the ziglang wheel."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from tracea_graph.config import Environment
from tracea_graph.errors import BuildError
from tracea_graph.temporary_files import kill_group
from tracea_graph.toolchain.platforms import HERE, Platform

__all__ = ["COMPILE_SECONDS", "Compiler", "find_compiler", "kill_running_commands", "run_command"]

COMPILE_SECONDS = 600.0
"""Compiler timeout; generous, because a loaded machine is not a hung compiler."""
_PROBE_SECONDS = 60.0
_STDERR_TAIL = 2000
_AS_IT_IS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler, started by ``command``.

    ``identity`` (its version text) and ``flags`` (the arguments in ``CXX``) are part of cache
    keys.
    """

    command: tuple[str, ...]
    identity: str
    flags: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """``gcc``, ``clang`` or ``zig``."""
        if any(word == "ziglang" or Path(word).stem == "zig" for word in self.command):
            return "zig"
        return "clang" if "clang" in self.identity else "gcc"

    def run(self, args: Sequence[str], folder: Path, seconds: float = COMPILE_SECONDS) -> None:
        """Run the compiler in a folder, where its temporary files go too.

        Raises BuildError if it fails or exceeds ``seconds``.
        """
        run_command((*self.command, *args), folder, seconds, {"TMPDIR": str(folder.resolve())})


def find_compiler(
    environment: Environment | None = None,
    seconds: float = _PROBE_SECONDS,
    platform: Platform = HERE,
) -> Compiler:
    """Return the first C++ compiler that answers ``--version`` within ``seconds``.

    ``CXX`` may contain arguments.  For platforms other than this machine's, the compiler is always
    zig.  Raises BuildError if the compiler in ``CXX`` does not work, or if there is none at all.
    """
    environment = environment or Environment()
    if platform != HERE:
        if importlib.util.find_spec("ziglang") is None:
            raise BuildError(
                f"Libraries for {platform.name} are compiled by zig: run `pip install ziglang`."
            )
        return _probe_zig(platform, seconds)
    if environment.compiler and environment.compiler.strip():
        words = _split_command(environment.compiler)
        return replace(_probe(words, seconds), flags=words[1:])
    for name in ("g++", "clang++"):
        if path := shutil.which(name):
            with contextlib.suppress(BuildError):
                return _probe((path,), seconds)
    if importlib.util.find_spec("ziglang") is not None:
        return _probe_zig(platform, seconds)
    raise BuildError(
        "No C++ compiler was found; install g++ or clang++, run `pip install ziglang`, "
        "or set CXX to one."
    )


def _zig(platform: Platform) -> tuple[str, ...]:
    return (sys.executable, "-m", "ziglang", "c++", "-target", platform.triple)


def _split_command(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise BuildError(f"CXX is not a command, {error}: {command}") from None


_log = logging.getLogger(__name__)
_running: dict[int, int] = {}
"""Process groups of running commands, and the thread that waits for each."""


def run_command(
    command: Sequence[str], folder: Path, seconds: float, env: Mapping[str, str] = _AS_IT_IS
) -> str:
    """Run a command in ``folder`` and return its output.

    ``env`` is added to the environment.  After ``seconds`` the command and all its child processes
    are killed.  Raises BuildError, with the command and the end of its stderr, if it fails or
    takes too long.
    """
    shown = shlex.join(command)
    _log.debug("%s", shown)
    with _group() as group:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # without a PATH, programs are found in this one, but gcc does not find its linker
                env={"PATH": os.defpath, **os.environ, "LC_ALL": "C", **env},
                process_group=group,
            )
        except OSError as error:
            message = (
                f"The compiler {command[0]} could not be started ({error.strerror}); check CXX."
            )
            raise BuildError(message, shown) from error
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            message = f"The compiler {command[0]} took longer than {seconds:g} s and was stopped."
            raise BuildError(message, shown) from error
        finally:
            if process.poll() is None:
                kill_group(group or process.pid)
                process.communicate()
    if process.returncode != 0:
        tail = err.decode(errors="replace")[-_STDERR_TAIL:]
        message = f"The compiler {command[0]} failed with exit code {process.returncode}"
        raise BuildError(f"{message}{_first_error(tail)}.", shown, tail)
    return out.decode(errors="replace")


def _first_error(stderr: str) -> str:
    """The line of a compiler's output that says what failed, after a colon; "" without one."""
    lines = (line.strip().rstrip(".") for line in stderr.splitlines())
    return next((f": {line}" for line in lines if "error" in line), "")


@contextlib.contextmanager
def _group() -> Iterator[int | None]:
    """Yield a process group that is killed if this process dies, even by SIGKILL.

    Its leader is a shell that waits for a line and kills the group at end of input.  The kernel's
    parent-death signal would reach only the compiler driver, not its children.  Raises BuildError
    if there is no shell.  Windows has no process groups: None, each command is killed by itself.
    """
    if sys.platform == "win32":
        yield None
        return
    try:
        started = subprocess.Popen(
            ("/bin/sh", "-c", "read -r _ || kill -s KILL 0"),
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            process_group=0,
        )  # fmt: skip
    except OSError as error:
        message = f"The shell that compilers run under could not be started ({error.strerror})."
        raise BuildError(message) from error
    with started as leader:
        _running[leader.pid] = threading.get_ident()
        try:
            yield leader.pid
        finally:
            del _running[leader.pid]
            with contextlib.suppress(BrokenPipeError):  # killed with its group
                leader.communicate(b"\n")


def kill_running_commands(thread: int | None = None) -> None:
    """Kill every running command, or those a thread waits for, to interrupt a build."""
    for group, waiting in tuple(_running.items()):
        if thread in (None, waiting):
            with contextlib.suppress(ProcessLookupError):
                kill_group(group)


def _probe_zig(platform: Platform, seconds: float) -> Compiler:
    """Ask zig in a folder of its own: for some platforms it leaves an empty ``a.o`` there."""
    with tempfile.TemporaryDirectory() as folder:
        return _probe(_zig(platform), seconds, Path(folder))


def _probe(command: tuple[str, ...], seconds: float, folder: Path | None = None) -> Compiler:
    version = run_command((*command, "--version"), folder or Path.cwd(), seconds).strip()
    return Compiler(command, version)
