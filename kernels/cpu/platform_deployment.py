"""Libraries for other machines: one per platform, of the same kernels and under one domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tracea_graph.config import Environment
from tracea_graph.errors import UsageError, did_you_mean
from tracea_graph.kernels.cpu.isa_levels import FAMILIES, host_library_levels, isa_of
from tracea_graph.kernels.cpu.library_build import build_library, domain_of, manifest
from tracea_graph.kernels.program import LibraryContents
from tracea_graph.toolchain import Counted, Library, ignore_progress
from tracea_graph.toolchain.library_artifact import LibraryManifest
from tracea_graph.toolchain.platforms import HERE, PLATFORMS, Platform, library_paths

__all__ = ["Deployment", "build_all", "deployments_of", "unmeasured"]

_HOST = "host"


@dataclass(frozen=True)
class Deployment:
    """A platform that a library is built for, and the levels that it has code for."""

    platform: Platform
    levels: tuple[str, ...]


def deployments_of(names: Sequence[str], precision: str) -> tuple[Deployment, ...]:
    """Parse the names of deployments, such as ``host`` and ``linux-aarch64:neon``.

    A platform without a level is built for all levels at which kernels of the precision exist;
    ``host`` is built for this machine's levels.  Raises UsageError for an unknown name or level,
    and for a platform that is named twice.
    """
    found = tuple(_deployment(name.strip(), precision) for name in names)
    platforms = [d.platform for d in found]
    if twice := next((p for p in platforms if platforms.count(p) > 1), None):
        raise UsageError(f"the targets {','.join(names)} name {twice.name} twice")
    return found


def _deployment(name: str, precision: str) -> Deployment:
    place, _, level = name.partition(":")
    if name == _HOST:
        return Deployment(HERE, host_library_levels(precision))
    if place not in PLATFORMS:
        which = did_you_mean(place, (_HOST, *PLATFORMS)) or f"; use {', '.join(PLATFORMS)}"
        raise UsageError(f"there is no platform {place!r}{which}")
    platform = PLATFORMS[place]
    family = next(f for f in FAMILIES if f.name == platform.machine)
    names = [isa.name for isa in family.levels]
    if not level:
        precision = "bf16" if precision == "int8" else precision  # for what is no product
        wanted = {*family.of(precision), *family.of("int8")}
        return Deployment(platform, tuple(isa.name for isa in family.levels if isa in wanted))
    if level not in names:
        which = did_you_mean(level, names) or f"; use {', '.join(names)}"
        raise UsageError(f"{place} has no level {level!r}{which}")
    below, own = family.levels[: names.index(level) + 1], isa_of(level)
    if own in family.fp16:  # which stands beside the levels before it
        below = tuple(isa for isa in below if {*own.features}.issuperset(isa.features))
    return Deployment(platform, tuple(isa.name for isa in below))


def unmeasured(deployments: Sequence[Deployment]) -> str:
    """Why deployments cannot run on this machine, as a sentence; empty if all can."""
    elsewhere = [d.platform.name for d in deployments if d.platform != HERE]
    if not elsewhere:
        return ""
    return (
        f"this machine is {HERE.name}: the kernels for {', '.join(elsewhere)} were neither run "
        "nor timed; verification covers the plain operators that the result falls back on"
    )


def build_all(
    deployments: Sequence[Deployment],
    contents: LibraryContents,
    out: Path,
    environment: Environment,
    quick: bool,
    counted: Counted = ignore_progress,
) -> Library:
    """Build a library per deployment next to ``out``; all can run the same model.

    They share one custom-op domain.  Returns the first library, which lists the others.  Raises
    BuildError; then no library is left.
    """
    facts = LibraryManifest(
        platforms={
            d.platform.name: manifest(contents, d.levels, quick=quick, platform=d.platform)
            for d in deployments
        }
    )
    domain = domain_of(facts)
    places = library_paths(out, tuple(d.platform for d in deployments))
    made: list[Library] = []
    try:
        for one, place in zip(deployments, places, strict=True):
            built = build_library(
                contents, one.levels, place, environment=environment, quick=quick,
                counted=counted, platform=one.platform, domain=domain,
            )  # fmt: skip
            made.append(replace(built, platform=one.platform.name, manifest=facts))
    except BaseException:
        for library in made:
            library.path.unlink(missing_ok=True)
        raise
    return replace(made[0], others=tuple(made[1:]))
