"""Fitting the cost model's numbers to what was measured (``python -m models.fit FILE --write``).

One number after the other is moved to where the predictions that depend on it are best, until none
moves any more: the sum of ``|log(predicted / measured)|``, each at most 1 so that a region the
model does not understand draws nothing.  A move has to pay, and may not cost right choices (fused
or not); what no measured region depends on stays.  The result is a fixed point: fitting again to
the same measurements changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import log
from typing import TYPE_CHECKING

from tracea_graph.policy import CostModel
from tracea_graph.policy.tables import Tables
from tracea_graph.ttg import Region, TileGraph

if TYPE_CHECKING:
    from models.fit import Choice, Prediction

__all__ = ["fit"]

_Name = tuple[str, str]
"""A number's kind and name."""

_STEPS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.02, 1.05, 1.1, 1.25, 1.4, 2.0)
"""Factors a number is tried with, again and again."""
_WORTH = 0.01
"""What a move has to gain of the distance of the regions it touches."""
_FEWEST = 3
"""Regions that say something about a number."""
_ROUNDS = 20


@dataclass
class _State:
    """Predictions and choices under some tables."""

    tables: Tables
    us: list[float]
    pairs: list[tuple[float, float]]

    def right(self, choices: Sequence[Choice]) -> int:
        return sum(
            replace(c, fused_predicted=fused, apart_predicted=apart).right
            for c, (fused, apart) in zip(choices, self.pairs, strict=True)
        )


class _Fit:
    """The measured regions, and which of them each number touches."""

    def __init__(self, predictions: Sequence[Prediction], choices: Sequence[Choice]) -> None:
        self.predictions, self.choices = predictions, choices

    def predict(
        self, tables: Tables, old: _State | None = None, rows: Sequence[int] = (),
        places: Sequence[int] = (),
    ) -> _State:  # fmt: skip
        """Under other tables; given an old state, only some rows and choices anew."""
        if old is None:
            rows, places = range(len(self.predictions)), range(len(self.choices))
            old = _State(tables, [0.0] * len(rows), [(0.0, 0.0)] * len(places))
        state = _State(tables, [*old.us], [*old.pairs])
        for i in rows:
            p = self.predictions[i]
            state.us[i] = _with(p.cost, tables)(p.row.graph, p.row.region)
        for i in places:
            c = self.choices[i]
            cost = _with(c.cost, tables)
            apart = sum(cost(c.before, r) for r in c.apart)
            state.pairs[i] = cost(c.row.graph, c.row.region), apart
        return state

    def touched(self, tables: Tables) -> dict[_Name, tuple[list[int], list[int]]]:
        """Rows and choices that depend on each number."""
        found: dict[_Name, tuple[list[int], list[int]]] = {n: ([], []) for n in tables.names()}
        for i, p in enumerate(self.predictions):
            for name in _read(tables, p.cost, [(p.row.graph, p.row.region)]):
                found[name][0].append(i)
        for i, c in enumerate(self.choices):
            regions = [(c.row.graph, c.row.region), *((c.before, r) for r in c.apart)]
            for name in _read(tables, c.cost, regions):
                found[name][1].append(i)
        return found

    def distance(self, state: _State, rows: Sequence[int]) -> float:
        return sum(min(1.0, abs(log(state.us[i] / self.predictions[i].row.us))) for i in rows)


def fit(
    tables: Tables,
    predictions: Sequence[Prediction],
    choices: Sequence[Choice],
    say: Callable[[str], None] = print,
) -> Tables:
    """The tables moved to where they predict best."""
    work = _Fit(predictions, choices)
    state = work.predict(tables)
    touched = work.touched(tables)
    for _ in range(_ROUNDS):
        moved = False
        for (kind, name), (rows, places) in touched.items():
            if len(rows) < _FEWEST:
                continue
            found = _better(work, state, kind, name, rows, places)
            if found is not None:
                was, now = (getattr(s.tables, kind)[name] for s in (state, found))
                say(f"{kind} {name}: {was:g} → {now:g} ({len(rows)} regions)")
                state, moved = found, True
        if not moved:
            break
    return state.tables


def _better(
    work: _Fit, state: _State, kind: str, name: str, rows: Sequence[int], places: Sequence[int]
) -> _State | None:
    """The best of the states one step away, if it pays and makes no choice worse."""
    least, best = work.distance(state, rows) * (1 - _WORTH), None
    for tables in _steps(state.tables, kind, name):
        other = work.predict(tables, state, rows)
        if (far := work.distance(other, rows)) < least:
            least, best = far, other
    if best is None:
        return None
    best = work.predict(best.tables, best, (), places)
    return best if best.right(work.choices) >= state.right(work.choices) else None


def _steps(tables: Tables, kind: str, name: str) -> Iterator[Tables]:
    for factor in _STEPS:
        yield tables.scaled(kind, name, factor)


class _Reading(Mapping[str, float]):
    """A table that remembers what was read."""

    def __init__(self, kind: str, numbers: Mapping[str, float], read: set[_Name]) -> None:
        self.kind, self.numbers, self.read = kind, numbers, read

    def __getitem__(self, name: str) -> float:
        number = self.numbers[name]
        self.read.add((self.kind, name))
        return number

    def __contains__(self, name: object) -> bool:
        return name in self.numbers

    def __iter__(self) -> Iterator[str]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)


def _read(
    tables: Tables, cost: CostModel, regions: Sequence[tuple[TileGraph, Region]]
) -> set[_Name]:
    """The numbers that the prediction of some regions reads."""
    read = set[_Name]()
    kinds = {f.name: _Reading(f.name, getattr(tables, f.name), read) for f in fields(tables)}
    watched = _with(cost, Tables(**kinds))
    for graph, region in regions:
        watched(graph, region)
    return read


def _with(cost: CostModel, tables: Tables) -> CostModel:
    return replace(cost, tables=tables)
