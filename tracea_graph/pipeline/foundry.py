"""Where results get their libraries: one each, or one that serves a whole suite of models."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tracea_graph.build import Library
from tracea_graph.config import Environment
from tracea_graph.errors import BuildError
from tracea_graph.kernels.program import OpType
from tracea_graph.ops.chain import Chain
from tracea_graph.pipeline.assembly import Assembly
from tracea_graph.target import Target

__all__ = ["Foundry"]


class Foundry:
    """Builds libraries for assemblies, for the same target."""

    def __init__(self, target: Target, environment: Environment) -> None:
        self.target, self.environment = target, environment
        self._shared: Library | None = None
        self._types: dict[str, OpType] = {}
        self._kernels: set[str] = set()
        self._chains: dict[int, Chain] = {}
        self._published: Path | None = None

    def stock(self, assemblies: Iterable[Assembly], out: Path) -> None:
        """Build one library, quickly, for all assemblies and whatever has no more than they have.

        Where that fails each assembly gets its own, so that only the guilty one has none.
        """
        for assembly in assemblies:
            self._types |= assembly.types
            self._kernels |= assembly.kernels
            self._chains |= assembly.chains
        if not self._types:
            return
        try:
            self._shared = self._build(self._types, self._kernels, self._chains, out, quick=True)
        except BuildError:
            self._shared = None

    def library(self, assembly: Assembly, out: Path) -> Library:
        """The assembly's library at ``out``.  Raises BuildError."""
        shared = self._shared
        if shared is None or not self._covers(assembly):
            return self._build(assembly.types, assembly.kernels, assembly.chains, out)
        self._place(shared.path, out)
        return replace(shared, path=out)

    def published(self, library: Library, place: Path) -> None:
        """A library is in its final place: if it is the shared one, others can be links to it."""
        if self._shared is not None and library.sha256 == self._shared.sha256:
            self._published = place

    def _covers(self, assembly: Assembly) -> bool:
        return (
            assembly.types.keys() <= self._types.keys()
            and assembly.kernels <= self._kernels
            and assembly.chains.keys() <= self._chains.keys()
        )

    def _build(
        self,
        types: dict[str, OpType],
        kernels: set[str],
        chains: dict[int, Chain],
        out: Path,
        quick: bool = False,
    ) -> Library:
        return self.target.backend.build(
            [t for _, t in sorted(types.items())],
            sorted(kernels),
            [c for _, c in sorted(chains.items())],
            self.target.levels,
            out,
            self.environment,
            quick,
        )

    def _place(self, shared: Path, out: Path) -> None:
        """One file under many names where the file system can; else copies."""
        out.unlink(missing_ok=True)
        for source in (shared, self._published):
            try:
                if source is not None:
                    os.link(source, out)
                    return
            except OSError:  # another file system, or one without links
                continue
        shutil.copyfile(shared, out)
        out.chmod(0o755)
