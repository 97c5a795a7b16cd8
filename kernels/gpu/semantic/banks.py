"""A simulator of shared memory's banks: it proves an access free of conflicts, or says why not.

There are 32 banks of 4 bytes.  The 32 lanes' words of 4 bytes or less are served at once; of 8
bytes by half of a warp, of 16 bytes by a quarter at a time (CUDA C++ Programming Guide, "Shared
Memory").  Lanes that want the same word of a bank share it; different words of one bank wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tracea_graph.errors import GraphError
from tracea_graph.kernels.gpu.semantic.lanes import WARP, MatrixLoad
from tracea_graph.kernels.gpu.semantic.swizzle import Layout

__all__ = ["BANKS", "Access", "BankConflict", "Conflict", "matrix_load", "prove_free"]

BANKS = 32
_WORD = 4


class BankConflict(GraphError):
    """A layout of shared memory makes lanes wait for each other."""


@dataclass(frozen=True)
class Conflict:
    """``degree`` words of one bank that lanes of one phase want at the same time."""

    degree: int
    phase: int
    bank: int
    lanes: tuple[int, ...]

    def __str__(self) -> str:
        who = ", ".join(map(str, self.lanes))
        return f"lanes {who} want {self.degree} words of bank {self.bank} in phase {self.phase}"


@dataclass(frozen=True)
class Access:
    """One instruction of a warp on shared memory: ``width`` bytes at each lane's address.

    None stands for a lane that is off.  Raises ValueError for a width there is none of, an address
    that is not a multiple of it, or more lanes than a warp has.
    """

    name: str
    width: int
    addresses: tuple[int | None, ...]

    def __post_init__(self) -> None:
        if self.width not in (1, 2, 4, 8, 16) or len(self.addresses) > WARP:
            raise ValueError(f"no access of {self.width} bytes by {len(self.addresses)} lanes")
        if any(a is not None and (a % self.width or a < 0) for a in self.addresses):
            raise ValueError(f"{self.name}: addresses are multiples of {self.width}")

    @property
    def phases(self) -> int:
        """How many parts of the warp are served one after the other, conflicts or not."""
        return max(1, self.width // _WORD)

    def worst(self) -> Conflict | None:
        """The conflict with most words of one bank, None where there is none."""
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
    """An ``ldmatrix`` from a tile at ``row`` and ``column`` (elements of ``size`` bytes)."""
    places = (load.address(lane) for lane in range(8 * len(load.blocks)))
    at = tuple(layout.offset(row + r, (column + c) * size) for r, c in places)
    return Access(name, 16, at)


def prove_free(accesses: Iterable[Access] | Sequence[Access]) -> None:
    """Do nothing if no access meets a bank twice.  Raises BankConflict with the worst one."""
    worst = max(
        ((c.degree, a.name, c) for a in accesses if (c := a.worst())),
        key=lambda one: one[0],
        default=None,
    )
    if worst is not None:
        raise BankConflict(f"{worst[1]} takes {worst[0]} turns: {worst[2]}.")
