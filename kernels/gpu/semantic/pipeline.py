"""The ring of buffers that hides memory's latency: what each step of it has to wait for.

Tile ``i`` is copied into stage ``i % stages`` and read from there.  Two things can go wrong: a
tile is read before its copy has come, or overwritten before all have read it.  A :class:`Ring`
says what each step waits for; :func:`prove` runs a model of the kernel in which copies come as
late as those waits allow and threads run as far apart as the barriers allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tracea_graph.errors import GraphError

__all__ = ["BarrierMode", "PipelineError", "Ring", "SyncRequirement", "prove"]


class BarrierMode(Enum):
    """How the threads of a block learn that a copy has come.

    NONE: they copy through registers, between two barriers of the block.  GROUPS: ``cp.async``,
    counted in groups by the thread that issued them, then a barrier of the block.  MBARRIER: a
    producer fills stages and consumers free them, both told by barriers with phases.
    """

    NONE = "none"
    GROUPS = "groups"
    MBARRIER = "mbarrier"


class PipelineError(GraphError):
    """A ring whose waits do not keep reads behind copies, or copies behind reads."""


@dataclass(frozen=True)
class SyncRequirement:
    """What must hold before a step.

    ``pending`` is how many groups of this thread's copies may still be on their way, None where
    the step waits for none.  ``block``: all threads of the block have come this far.  ``phase`` is
    the parity to wait for at the stage's barrier (full to read, empty to write), None where there
    is no barrier, or nothing to wait for yet.
    """

    stage: int
    pending: int | None = None
    block: bool = False
    phase: int | None = None


@dataclass(frozen=True)
class Ring:
    """``stages`` buffers; ``prefetched`` tiles are on their way before the first one is read.

    ``pending`` overrides how many groups a read leaves on their way (tests of what goes wrong).
    Raises ValueError for a ring that has no room for what is on its way.
    """

    stages: int
    mode: BarrierMode
    pending: int | None = None

    def __post_init__(self) -> None:
        least = {BarrierMode.NONE: 1, BarrierMode.GROUPS: 2, BarrierMode.MBARRIER: 1}[self.mode]
        if self.stages < least:
            raise ValueError(f"a ring by {self.mode.value} has at least {least} stages")

    @property
    def prefetched(self) -> int:
        """Tiles issued before the loop; one stage is always being read."""
        return 0 if self.mode is BarrierMode.NONE else max(1, self.stages - 1)

    @property
    def left(self) -> int:
        """Groups a read may leave on their way: those of the tiles behind it."""
        return self.prefetched - 1 if self.pending is None else self.pending

    def slot(self, tile: int) -> tuple[int, int]:
        """The stage a tile lies in, and how often the ring has gone round before, mod 2."""
        return tile % self.stages, tile // self.stages % 2

    def before_read(self, tile: int) -> SyncRequirement:
        """What a thread waits for before it reads a tile."""
        stage, phase = self.slot(tile)
        if self.mode is BarrierMode.MBARRIER:
            return SyncRequirement(stage, phase=phase)
        pending = self.left if self.mode is BarrierMode.GROUPS else None
        return SyncRequirement(stage, pending=pending, block=True)

    def before_write(self, tile: int) -> SyncRequirement:
        """What a thread waits for before it issues the copy of a tile."""
        stage, phase = self.slot(tile)
        if self.mode is BarrierMode.MBARRIER:
            # A fresh barrier counts as being in phase 0: waiting for parity 1 passes at once.
            return SyncRequirement(stage, phase=phase ^ 1)
        return SyncRequirement(stage, block=tile >= self.prefetched)


def prove(ring: Ring, tiles: int = 0) -> None:
    """Do nothing if the ring is safe for so many tiles (0: enough to go round three times).

    Raises PipelineError with the step that is not.
    """
    count = tiles or 3 * ring.stages + 1
    if ring.mode is BarrierMode.MBARRIER:
        _prove_phases(ring, count)
    else:
        _prove_groups(ring, count)


def _prove_groups(ring: Ring, count: int) -> None:
    """Every thread runs the same steps.  A copy has come only if a wait says so, and threads that
    no barrier holds may still be reading the tile before."""
    held: dict[int, int] = {}
    come: set[int] = set()
    issued: list[int] = []
    read_by_all = -1  # the last tile that a barrier says all threads have read

    def issue(tile: int) -> None:
        stage = ring.before_write(tile).stage
        if held.get(stage, -1) > read_by_all:
            raise PipelineError(f"Tile {tile} overwrites tile {held[stage]} that may be read.")
        held[stage] = tile
        issued.append(tile)

    for tile in range(min(ring.prefetched, count)):
        issue(tile)
    groups = ring.prefetched  # groups are committed even where there is no tile left
    for tile in range(count):
        need = ring.before_read(tile)
        if ring.mode is BarrierMode.NONE:
            read_by_all = tile - 1
            issue(tile)
            come.add(tile)
        else:
            assert need.pending is not None
            come.update(range(min(count, groups - need.pending)))
            read_by_all = tile - 1 if need.block else read_by_all
            if tile + ring.prefetched < count:
                issue(tile + ring.prefetched)
            groups += 1
        if held.get(need.stage) != tile:
            raise PipelineError(f"Stage {need.stage} holds {held.get(need.stage)}, not {tile}.")
        if tile not in come:
            raise PipelineError(f"Tile {tile} is read with {need.pending} groups on their way.")


@dataclass(frozen=True)
class _State:
    """How far producer, copies and consumer are, and completed phases of the barriers."""

    issued: int = 0
    arrived: frozenset[int] = frozenset()
    read: int = 0


def _prove_phases(ring: Ring, count: int) -> None:
    """All orders in which producer, copies and consumer can go, one step at a time."""
    seen, todo = {_State()}, [_State()]
    while todo:
        state = todo.pop()
        nexts = _successors(ring, state, count)
        if not nexts and state.read < count:
            raise PipelineError(f"Nobody goes on after tile {state.read} of {count} was read.")
        for after in nexts:
            if after not in seen:
                seen.add(after)
                todo.append(after)


def _successors(ring: Ring, state: _State, count: int) -> list[_State]:
    found = []
    if state.issued < count:
        need = ring.before_write(state.issued)
        freed = sum(1 for tile in range(state.read) if tile % ring.stages == need.stage)
        assert need.phase is not None
        if _passes(freed, need.phase):
            before = state.issued - ring.stages
            if before >= state.read:
                raise PipelineError(f"Tile {state.issued} overwrites tile {before} that is read.")
            found.append(_State(state.issued + 1, state.arrived, state.read))
    for tile in range(state.issued):
        if tile not in state.arrived:
            found.append(_State(state.issued, state.arrived | {tile}, state.read))
    if state.read < count:
        need = ring.before_read(state.read)
        filled = sum(1 for tile in state.arrived if tile % ring.stages == need.stage)
        assert need.phase is not None
        if _passes(filled, need.phase):
            if state.read not in state.arrived:
                raise PipelineError(f"Tile {state.read} is read before its copy has come.")
            found.append(_State(state.issued, state.arrived, state.read + 1))
    return found


def _passes(completed: int, parity: int) -> bool:
    """Whether ``mbarrier.try_wait.parity`` passes: the phase of that parity is not the current."""
    return completed % 2 != parity
