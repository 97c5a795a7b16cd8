"""Fit the cost model's coefficients to measurements (``python -m models.fit FILE --write``).

Coordinate descent moves one coefficient at a time until none moves.  The objective is the sum of
``|log(predicted / measured)|``, each capped at 1 so that regions the model cannot explain have no
pull, plus 1 per wrong choice (fused or not).  Large moves must gain more than small ones, and
coefficients on which few measured regions depend stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import log

from models.region_times import MeasuredRegion
from tracea_graph.policy import CostModel
from tracea_graph.policy.cost_coefficients import Coefficients
from tracea_graph.ttg import Region, TileGraph

__all__ = ["FusionChoice", "Prediction", "fit", "rechosen", "repredicted"]

_Name = tuple[str, str]
"""Kind and name of a coefficient."""

_STEPS = (0.5, 0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.4, 2.0)
"""Factors tried on a coefficient, repeatedly."""
_WORTH = 0.003
"""Minimum gain of a move per region it affects, in logarithms of time."""
_STAY = 0.05
"""Penalty per region for the distance from the initial value, per factor of e."""
_FEWEST = 3
"""Minimum number of regions that depend on a coefficient to fit it."""
_ROUNDS = 20
_CLOSE = 1.1
"""Tolerance within which a choice counts as right."""


@dataclass(frozen=True)
class Prediction:
    """One measured region, its predicted µs and its operation count."""

    row: MeasuredRegion
    cost: CostModel
    us: float
    flops: float

    @property
    def error(self) -> float:
        """|predicted / measured − 1|"""
        return abs(self.us / self.row.us - 1.0)

    @property
    def kind(self) -> str:
        """Group of regions that is reported and fitted together."""
        layout = getattr(self.row.region.params, "layout", "")
        return f"{self.row.what} {self.row.region.op} {layout}".strip()


@dataclass(frozen=True)
class FusionChoice:
    """A fused region and the operators it replaces (``unfused``, regions of the graph ``before``):
    their measured and predicted times in µs."""

    row: MeasuredRegion
    cost: CostModel
    before: TileGraph
    unfused: tuple[Region, ...]
    unfused_us: float
    fused_predicted: float
    unfused_predicted: float

    @property
    def right(self) -> bool:
        """Whether what the model prefers takes at most a tenth longer than the better one."""
        chosen = self.row.us if self.fused_predicted <= self.unfused_predicted else self.unfused_us
        return chosen <= _CLOSE * min(self.row.us, self.unfused_us)


@dataclass
class _FitState:
    """Predicted µs, and whether choices are right, under some coefficients."""

    coefficients: Coefficients
    us: list[float]
    right: list[bool]


class _Fit:
    """Measured regions, and which of them depend on each coefficient."""

    def __init__(
        self,
        start: Coefficients,
        predictions: Sequence[Prediction],
        choices: Sequence[FusionChoice],
    ) -> None:
        self.start, self.predictions, self.choices = start, predictions, choices

    def state(self) -> _FitState:
        """Return the state under the initial coefficients."""
        us, right = [p.us for p in self.predictions], [c.right for c in self.choices]
        return _FitState(self.start, us, right)

    def moved(
        self,
        coefficients: Coefficients,
        old: _FitState,
        rows: Sequence[int],
        places: Sequence[int],
    ) -> _FitState:
        """Return the state under other coefficients, which affect only some rows and choices."""
        state = _FitState(coefficients, [*old.us], [*old.right])
        for i in rows:
            state.us[i] = repredicted(self.predictions[i], coefficients).us
        for i in places:
            state.right[i] = rechosen(self.choices[i], coefficients).right
        return state

    def touched(self, coefficients: Coefficients) -> dict[_Name, tuple[list[int], list[int]]]:
        """Return the rows and choices that depend on each coefficient."""
        found: dict[_Name, tuple[list[int], list[int]]] = {
            n: ([], []) for n in coefficients.names()
        }
        for i, p in enumerate(self.predictions):
            for name in _read(coefficients, p.cost, [(p.row.graph, p.row.region)]):
                found[name][0].append(i)
        for i, c in enumerate(self.choices):
            regions = [(c.row.graph, c.row.region), *((c.before, r) for r in c.unfused)]
            for name in _read(coefficients, c.cost, regions):
                found[name][1].append(i)
        return found

    def cost(
        self, state: _FitState, at: _Name, rows: Sequence[int], places: Sequence[int]
    ) -> float:
        """Return the objective over some rows and choices, with the distance penalty."""
        kind, name = at
        far = sum(min(1.0, abs(log(state.us[i] / self.predictions[i].row.us))) for i in rows)
        wrong = sum(not state.right[i] for i in places)
        come = abs(log(getattr(state.coefficients, kind)[name] / getattr(self.start, kind)[name]))
        return far + wrong + _STAY * come * len(rows)


def repredicted(prediction: Prediction, coefficients: Coefficients) -> Prediction:
    """Return a prediction under other coefficients."""
    cost = replace(prediction.cost, coefficients=coefficients)
    return replace(prediction, cost=cost, us=cost(prediction.row.graph, prediction.row.region))


def rechosen(choice: FusionChoice, coefficients: Coefficients) -> FusionChoice:
    """Return a choice under other coefficients."""
    cost = replace(choice.cost, coefficients=coefficients)
    fused = cost(choice.row.graph, choice.row.region)
    unfused = sum(cost(choice.before, r) for r in choice.unfused)
    return replace(choice, cost=cost, fused_predicted=fused, unfused_predicted=unfused)


def fit(
    coefficients: Coefficients,
    predictions: Sequence[Prediction],
    choices: Sequence[FusionChoice],
    say: Callable[[str], None] = print,
) -> Coefficients:
    """Return the coefficients that predict best."""
    work = _Fit(coefficients, predictions, choices)
    state = work.state()
    touched = work.touched(coefficients)
    for _ in range(_ROUNDS):
        moved = False
        for (kind, name), (rows, places) in touched.items():
            if len(rows) < _FEWEST:
                continue
            found = _better(work, state, (kind, name), rows, places)
            if found is not None:
                was, now = (getattr(s.coefficients, kind)[name] for s in (state, found))
                say(f"{kind} {name}: {was:g} → {now:g} ({len(rows)} regions)")
                state, moved = found, True
        if not moved:
            break
    return state.coefficients


def _better(
    work: _Fit, state: _FitState, at: _Name, rows: Sequence[int], places: Sequence[int]
) -> _FitState | None:
    """Return the best state one step away if it pays, else None."""
    least, best = work.cost(state, at, rows, places) - _WORTH * len(rows), None
    for factor in _STEPS:
        other = work.moved(state.coefficients.scaled(*at, factor), state, rows, ())
        if work.cost(other, at, rows, ()) > least:
            continue  # even if it made all choices right
        other = work.moved(other.coefficients, other, (), places)
        if (cost := work.cost(other, at, rows, places)) < least:
            least, best = cost, other
    return best


class _Reading(Mapping[str, float]):
    """A table that records which entries are read."""

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
    coefficients: Coefficients, cost: CostModel, regions: Sequence[tuple[TileGraph, Region]]
) -> set[_Name]:
    """Return the coefficients that the prediction of some regions reads."""
    read = set[_Name]()
    kinds = {
        f.name: _Reading(f.name, getattr(coefficients, f.name), read) for f in fields(coefficients)
    }
    watched = replace(cost, coefficients=Coefficients(**kinds))
    for graph, region in regions:
        watched(graph, region)
    return read
