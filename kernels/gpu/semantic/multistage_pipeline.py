"""Multistage pipeline: the buffers that hide memory latency, and the waits each step needs.

Tile ``i`` is copied into stage ``i % stages`` and read from there.  There are two hazards: a tile
is read before its copy has completed, or overwritten before all threads have read it.  A
:class:`Ring` states the waits of each step; :func:`prove` runs a model of the kernel in which
copies complete as late as those waits allow and threads diverge as far as the barriers allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache

from tracea_graph.errors import GraphError

__all__ = ["BarrierMode", "PipelineError", "Ring", "SyncRequirement", "prove"]


class BarrierMode(Enum):
    """Mechanism by which the threads of a block learn that a copy has completed.

    NONE: threads copy through registers, between two block barriers.  GROUPS: ``cp.async``,
    counted in groups by the issuing thread, followed by a block barrier.  MBARRIER: a producer
    fills stages and consumers release them; each signals through barriers with phases.
    """

    NONE = "none"
    GROUPS = "groups"
    MBARRIER = "mbarrier"


class PipelineError(GraphError):
    """The waits of a ring do not order reads after copies, or copies after reads."""


@dataclass(frozen=True)
class SyncRequirement:
    """Condition that must hold before a step.

    ``pending`` is the number of this thread's copy groups that may still be in flight, None if the
    step waits for no copies.  ``block`` requires a block barrier.  ``phase`` is the parity to wait
    for at the stage's barrier (full before a read, empty before a write), None if there is no
    barrier or nothing to wait for yet.
    """

    stage: int
    pending: int | None = None
    block: bool = False
    phase: int | None = None


@dataclass(frozen=True)
class Ring:
    """Ring of ``stages`` buffers, from which tiles are read in order while later ones are copied.

    ``pending`` replaces :attr:`left`, so that tests can build unsafe rings.  Raises ValueError if
    the ring has too few stages for its mode.
    """

    stages: int
    mode: BarrierMode
    pending: int | None = None

    def __post_init__(self) -> None:
        least = {BarrierMode.NONE: 1, BarrierMode.GROUPS: 2, BarrierMode.MBARRIER: 1}[self.mode]
        if self.stages < least:
            raise ValueError(f"a ring with {self.mode.value} needs at least {least} stages")

    @property
    def prefetched(self) -> int:
        """Number of tiles whose copies start before the first tile is read."""
        return 0 if self.mode is BarrierMode.NONE else max(1, self.stages - 1)

    @property
    def left(self) -> int:
        """Number of copy groups, all of later tiles, that may be in flight during a read."""
        return self.prefetched - 1 if self.pending is None else self.pending

    def slot(self, tile: int) -> tuple[int, int]:
        """Return the stage of a tile, and the parity of the tile's revolution of the ring."""
        return tile % self.stages, tile // self.stages % 2

    def before_read(self, tile: int) -> SyncRequirement:
        """Return the condition under which a thread may read a tile."""
        stage, phase = self.slot(tile)
        if self.mode is BarrierMode.MBARRIER:
            return SyncRequirement(stage, phase=phase)
        pending = self.left if self.mode is BarrierMode.GROUPS else None
        return SyncRequirement(stage, pending=pending, block=True)

    def before_write(self, tile: int) -> SyncRequirement:
        """Return the condition under which a thread may issue the copy of a tile."""
        stage, phase = self.slot(tile)
        if self.mode is BarrierMode.MBARRIER:
            # A new barrier counts as being in phase 0: waiting for parity 1 passes immediately.
            return SyncRequirement(stage, phase=phase ^ 1)
        return SyncRequirement(stage, block=tile >= self.prefetched)


@cache  # few rings differ, and all orders of their steps are tried
def prove(ring: Ring, tiles: int = 0) -> None:
    """Prove that the ring is safe for ``tiles`` tiles; 0 stands for three revolutions.

    Raises PipelineError with the first unsafe step.
    """
    count = tiles or 3 * ring.stages + 1
    if ring.mode is BarrierMode.MBARRIER:
        _prove_phases(ring, count)
    else:
        _prove_groups(ring, count)


def _prove_groups(ring: Ring, count: int) -> None:
    """Simulate a ring in which all threads run the same steps.

    A copy has completed only if a wait says so, and a thread that no barrier holds back may still
    be reading the previous tile.
    """
    held: dict[int, int] = {}
    come: set[int] = set()
    issued: list[int] = []
    read_by_all = -1  # last tile that all threads have read, according to a barrier

    def issue(tile: int) -> None:
        stage = ring.before_write(tile).stage
        if held.get(stage, -1) > read_by_all:
            raise PipelineError(f"Tile {tile} overwrites tile {held[stage]} that may be read.")
        held[stage] = tile
        issued.append(tile)

    for tile in range(min(ring.prefetched, count)):
        issue(tile)
    groups = ring.prefetched  # groups are committed even if no tile is left
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
            raise PipelineError(f"Tile {tile} is read with {need.pending} copies in flight.")


@dataclass(frozen=True)
class _State:
    """Progress of producer, copies and consumer, and the number of completed barrier phases."""

    issued: int = 0
    arrived: frozenset[int] = frozenset()
    read: int = 0


def _prove_phases(ring: Ring, count: int) -> None:
    """Explore all interleavings of producer, copies and consumer, one step at a time."""
    seen, todo = {_State()}, [_State()]
    while todo:
        state = todo.pop()
        nexts = _successors(ring, state, count)
        if not nexts and state.read < count:
            raise PipelineError(f"Deadlock: {state.read} of {count} tiles were read.")
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
                raise PipelineError(f"Tile {state.issued} overwrites tile {before}, not yet read.")
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
                raise PipelineError(f"Tile {state.read} is read before its copy is complete.")
            found.append(_State(state.issued, state.arrived, state.read + 1))
    return found


def _passes(completed: int, parity: int) -> bool:
    """Whether ``mbarrier.try_wait.parity`` passes: the phase of that parity has completed."""
    return completed % 2 != parity
