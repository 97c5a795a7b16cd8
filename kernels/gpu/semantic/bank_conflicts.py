"""Simulate bank conflicts of shared memory: prove an access conflict-free, or name the conflict.

Shared memory has 32 banks of 4 bytes.  A warp's accesses of up to 4 bytes a lane are served in one
phase, of 8 bytes in two (half warps), of 16 bytes in four (quarter warps; CUDA C++ Programming
Guide, "Shared Memory").  Lanes that access one word of a bank share it; accesses to different
words of one bank are serialized.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tracea_graph.errors import GraphError
from tracea_graph.kernels.gpu.semantic.fragment_layouts import WARP, MatrixLoad
from tracea_graph.kernels.gpu.semantic.shared_memory_swizzle import Layout

__all__ = ["BANKS", "Access", "BankConflict", "Conflict", "matrix_load", "prove_free"]

BANKS = 32
_WORD = 4


class BankConflict(GraphError):
    """An access to shared memory has a bank conflict."""


@dataclass(frozen=True)
class Conflict:
    """A bank conflict: in one phase, ``lanes`` access ``degree`` different words of a bank."""

    degree: int
    phase: int
    bank: int
    lanes: tuple[int, ...]

    def __str__(self) -> str:
        who = ", ".join(map(str, self.lanes))
        return f"lanes {who} access {self.degree} words of bank {self.bank} in phase {self.phase}"


@dataclass(frozen=True)
class Access:
    """One shared-memory instruction of a warp: ``width`` bytes at each lane's address.

    An address of None stands for an inactive lane.  Raises ValueError for an unsupported width, an
    unaligned address, or more lanes than a warp has.
    """

    name: str
    width: int
    addresses: tuple[int | None, ...]

    def __post_init__(self) -> None:
        if self.width not in (1, 2, 4, 8, 16) or len(self.addresses) > WARP:
            raise ValueError(f"no access of {self.width} bytes by {len(self.addresses)} lanes")
        if any(a is not None and (a % self.width or a < 0) for a in self.addresses):
            raise ValueError(f"{self.name}: addresses must be multiples of {self.width}")

    @property
    def phases(self) -> int:
        """Number of phases in which the hardware serves the warp if there are no conflicts."""
        return max(1, self.width // _WORD)

    def worst(self) -> Conflict | None:
        """Return the conflict of the highest degree, or None if there is no conflict."""
        lanes = WARP // self.phases
        found: list[Conflict] = []
        for phase in range(self.phases):
            wanted: dict[int, dict[int, int]] = {}
            for lane in range(phase * lanes, min((phase + 1) * lanes, len(self.addresses))):
                for word in self._words(lane):
                    wanted.setdefault(word % BANKS, {}).setdefault(word, lane)
            found += [
                Conflict(len(words), phase, bank, tuple(words.values()))
                for bank, words in wanted.items()
                if len(words) > 1
            ]
        return max(found, key=lambda c: c.degree, default=None)

    def _words(self, lane: int) -> range:
        address = self.addresses[lane]
        if address is None:
            return range(0)
        return range(address // _WORD, (address + self.width - 1) // _WORD + 1)


def matrix_load(
    name: str, load: MatrixLoad, layout: Layout, row: int, column: int, size: int = 2
) -> Access:
    """Describe an ``ldmatrix`` from a tile; ``size`` is the element size in bytes."""
    places = (load.address(lane) for lane in range(8 * len(load.blocks)))
    at = tuple(layout.offset(row + r, (column + c) * size) for r, c in places)
    return Access(name, 16, at)


def prove_free(accesses: Iterable[Access] | Sequence[Access]) -> None:
    """Prove accesses free of bank conflicts.  Raises BankConflict with the worst conflict."""
    worst = max(
        ((c.degree, a.name, c) for a in accesses if (c := a.worst())),
        key=lambda one: one[0],
        default=None,
    )
    if worst is not None:
        raise BankConflict(f"{worst[1]} takes {worst[0]} turns: {worst[2]}.")
