"""Build the libraries of one run: shared ones, and ahead what all of them have in common."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from tracea_graph.config import Environment
from tracea_graph.kernels.program import NO_CONTENTS, LibraryContents
from tracea_graph.pipeline.result_assembly import Assembly
from tracea_graph.pipeline.step_timer import Deadline
from tracea_graph.target import PartBuilder, Target
from tracea_graph.temporary_files import ScratchFolder
from tracea_graph.toolchain import Counted, Library, LibraryPart, find_compiler, ignore_progress
from tracea_graph.toolchain.compilers import kill_running_commands
from tracea_graph.toolchain.linking import link_parts

__all__ = ["LibraryBuilder"]


def _contents(assembly: Assembly | None) -> LibraryContents:
    """What an assembly needs of one backend's code."""
    return NO_CONTENTS if assembly is None else assembly.contents


_STOPPING_SECONDS = 0.05
"""Time between two attempts to stop a compiler that is just being started."""


def _end(thread: threading.Thread) -> None:
    """Kill the compiler that a thread runs, and any that it still starts, until it ends."""
    while thread.is_alive():
        kill_running_commands(thread.ident)
        thread.join(_STOPPING_SECONDS)


class LibraryBuilder(AbstractContextManager["LibraryBuilder"]):
    """Builds libraries for one target; many models may share one library."""

    def __init__(self, target: Target, environment: Environment) -> None:
        self.target, self.environment = target, environment
        self._shared: Library | None = None
        self._contents = NO_CONTENTS
        self._fallback = NO_CONTENTS
        self._published: Path | None = None
        self.counted: Counted = ignore_progress
        """Called with the number of units compiled so far and of all units to compile."""
        self._ahead: threading.Thread | None = None
        self._closed = threading.Event()

    def require_compilers(self) -> None:
        """Raise BuildError if what compiles the target's kernels is missing."""
        for one in filter(None, (self.target.fallback, self.target)):
            one.backend.require_compilers(self.environment)

    def start(self) -> None:
        """Start to compile, in the background, what every library has; later calls do nothing."""
        if self._ahead is None:
            build = self.target.backend.build_ahead
            arguments = (self.target.levels, self.environment, self._closed.is_set)
            self._ahead = threading.Thread(target=build, args=arguments, daemon=True)
            self._ahead.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed.set()
        if self._ahead is not None:
            _end(self._ahead)

    @contextmanager
    def compiling(
        self, assembly: Assembly, levels: Sequence[str], deadline: Deadline
    ) -> Iterator[None]:
        """Compile an assembly's kernels for ``levels`` meanwhile, one at a time.

        This is for steps that leave a processor idle and time nothing.  The context ends when the
        kernel that was begun last is compiled, which is not counted towards the deadline; after an
        exception, that compiler is killed.
        """
        stopped = threading.Event()
        arguments = (levels, self.environment, stopped.is_set, assembly.contents)
        thread = threading.Thread(
            target=self.target.backend.build_ahead, args=arguments, daemon=True
        )

        thread.start()
        try:
            yield
            stopped.set()
            with deadline.suspended():
                thread.join()
        finally:
            stopped.set()
            _end(thread)

    def build_shared(self, assemblies: Iterable[Assembly], out: Path) -> None:
        """Build one library, quickly, that serves all ``assemblies`` and every subset of them.

        If the build fails in any way, each assembly gets its own library later, whose build fails
        again for the faulty one only.
        """
        for assembly in assemblies:
            self._contents |= assembly.contents
            self._fallback |= _contents(assembly.fallback)
        if not self._contents.types:
            return
        try:
            self._shared = self._build(self._contents, self._fallback, out, quick=True)
        except Exception:
            self._shared = None

    def library(
        self, assembly: Assembly, out: Path, levels: Sequence[str] | None = None
    ) -> Library:
        """Write the assembly's library to ``out``, for ``levels`` (default: all of the target).

        Raises BuildError.
        """
        shared = self._shared
        own, fallback = assembly.contents, _contents(assembly.fallback)
        covered = own <= self._contents and fallback <= self._fallback
        if shared is None or not covered:
            return self._build(own, fallback, out, levels=levels)
        start = len(shared.path.stem)
        placed = [
            replace(each, path=out.with_name(out.stem + each.path.name[start:]))
            for each in shared.all
        ]
        for each, place in zip(shared.all, placed, strict=True):
            self._place(each.path, place.path)
        return replace(placed[0], others=tuple(placed[1:]))

    def published(self, library: Library, path: Path) -> None:
        """Record where a library was published; later copies of it become links to that file."""
        if self._shared is not None and library.sha256 == self._shared.sha256:
            self._published = path

    def _build(
        self,
        own: LibraryContents,
        fallback: LibraryContents,
        out: Path,
        quick: bool = False,
        levels: Sequence[str] | None = None,
    ) -> Library:
        target, environment, levels = self.target, self.environment, levels or self.target.levels
        if target.fallback is None:
            return target.backend.build(
                own, levels, out, environment, quick=quick, counted=self.counted
            )
        start = time.perf_counter()
        parts = list[LibraryPart]()
        with ScratchFolder("build") as name:
            for i, (one, contents) in enumerate(((target.fallback, fallback), (target, own))):
                assert isinstance(one.backend, PartBuilder)
                folder, entry = Path(name, str(i)), f"tracea_register_{one.backend.name}"
                folder.mkdir()
                parts.append(
                    one.backend.compile_part(
                        contents, one.levels, folder, environment, entry, quick
                    )
                )
            made = link_parts(parts, out, find_compiler(environment), Path(name))
        return replace(made, seconds=time.perf_counter() - start)

    def _place(self, shared: Path, out: Path) -> None:
        """Hard-link ``shared`` to ``out``, or copy it where links are not possible."""
        out.unlink(missing_ok=True)
        for source in (shared, self._published):
            try:
                if source is not None:
                    os.link(source, out)
                    return
            except OSError:  # another file system, or no support for links
                continue
        shutil.copyfile(shared, out)
        shutil.copymode(shared, out)
