"""Hints: schedules that a user or an earlier run specifies for a pattern of cases.

    patterns:
      - match: gemm 768x3072*     # as `tracea tune` names it; * and ? as in file names
        rows: 128                 # optional: at this row count only
        tile: {rows: 64, columns: 4}
        stages: 2                 # 1: no prefetch; 2: the next weights are fetched meanwhile
        epilogue: fused           # or plain: only products with, or without, an epilogue

The settings allowed in ``tile``, and whether there are stages, depend on the problem's backend
(``Problem.tile``).  Settings left out keep their defaults.  Cases that match a hint are not
measured.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from importlib.metadata import entry_points
from typing import Any

from tracea_graph.errors import UsageError
from tracea_graph.kernels.program import Schedule
from tracea_graph.tuning.tuner import Propose
from tracea_graph.tuning.tuner_events import TuningResult
from tracea_graph.tuning.tuning_problem import Case, default_schedule

__all__ = [
    "GROUP",
    "Hint",
    "hint_of_result",
    "hinted_schedule",
    "parse_hints",
    "plugin_candidates",
]

GROUP = "tracea_graph.candidates"
"""Entry points of this group propose candidates: ``propose(case) -> iterable of dicts``.  A case
is a dict of ``op``, ``rows``, ``dtype`` and its sizes (such as ``k`` and ``n``); a candidate is a
dict of settings that a hint's ``tile`` allows, and ``stages``.
"""
_LEAST = {"rows": 1}
"""Minimum values of a tile's settings; 0 (automatic) for settings that are not listed."""
_KEYS = ("match", "rows", "tile", "stages", "epilogue")
_EPILOGUES = ("fused", "plain", "any")
_LARGEST = 1 << 20


@dataclass(frozen=True)
class Hint:
    """One entry of ``patterns``; see the module's docstring."""

    match: str
    tile: tuple[tuple[str, int], ...] = ()
    stages: int | None = None
    epilogue: str = "any"
    rows: int | None = None

    def fits(self, case: Case) -> bool:
        """Return True if the hint matches a case."""
        fused = case.problem.epilogue is not None
        return (
            fnmatchcase(str(case.problem), self.match)
            and self.rows in (None, case.rows)
            and self.epilogue in ("any", "fused" if fused else "plain")
            and dict(self.tile).keys() <= case.problem.tile.keys()
        )

    def schedule(self, case: Case) -> Schedule:
        """Return the case's default with the hint's settings."""
        return _schedule(case, dict(self.tile), self.stages)


def parse_hints(entries: Any, words: Sequence[str]) -> tuple[Hint, ...]:
    """Parse the ``patterns`` of a config file.

    ``words`` are the names of the settings that a tile may have.  Raises UsageError for invalid
    entries.
    """
    if not isinstance(entries, list | tuple):
        raise UsageError(f"patterns must be a list of hints, not {_brief(entries)}")
    return tuple(_hint(entry, words) for entry in entries)


def hint_of_result(tuned: TuningResult) -> dict[str, Any]:
    """Return a result as an entry of ``patterns``."""
    found, problem = asdict(tuned.schedule), tuned.case.problem
    return {
        "match": re.sub(r"([\[*?])", r"[\1]", str(problem)),
        "rows": tuned.case.rows,
        "tile": {n: found[field] for n, field in problem.tile.items()},
        **({"stages": 1 + found[problem.stages]} if problem.stages else {}),
        "epilogue": "fused" if problem.epilogue else "plain",
    }


def hinted_schedule(hints: Sequence[Hint], case: Case) -> Schedule | None:
    """Return the schedule that the first matching hint gives a case, if any matches."""
    return next((hint.schedule(case) for hint in hints if hint.fits(case)), None)


def plugin_candidates() -> Propose:
    """Return a function that puts candidates of installed entry points before the policy's.

    Raises UsageError for an entry point that cannot be loaded or returns an invalid candidate.
    """
    found = [(point.name, _loaded(point)) for point in entry_points(group=GROUP)]

    def propose(case: Case, ranked: Sequence[Schedule]) -> Sequence[Schedule]:
        more = [d for name, ask in found for d in _proposed(name, ask, case)]
        return list(dict.fromkeys((*more, *ranked)))

    return propose


def _loaded(point: Any) -> Any:
    try:
        return point.load()
    except Exception as error:
        raise UsageError(f"the entry point {point.name!r} cannot be loaded: {error}") from error


def _proposed(name: str, ask: Any, case: Case) -> Iterable[Schedule]:
    p = case.problem
    facts = {"op": str(p), "rows": case.rows, **p.sizes, "dtype": p.dtype}
    try:
        proposed = [dict(one) for one in ask(facts)]
    except Exception as error:
        raise UsageError(f"the entry point {name!r} failed on {case}: {error}") from error
    for one in proposed:
        stages = one.pop("stages", None)
        tile = _tile(one, f"the entry point {name!r}", tuple(p.tile))
        yield _schedule(case, tile, _stages(stages))


def _schedule(case: Case, tile: Mapping[str, int], stages: int | None) -> Schedule:
    default, fields, switch = default_schedule(case), case.problem.tile, case.problem.stages
    changes = {fields[name]: size for name, size in tile.items()}
    if stages is not None and switch:
        changes[switch] = stages - 1
    return default.having(**changes)


def _hint(entry: Any, words: Sequence[str]) -> Hint:
    if not isinstance(entry, dict) or not isinstance(entry.get("match"), str):
        raise UsageError(f"a hint needs a match, such as 'gemm 768x3072*', but is {_brief(entry)}")
    if unknown := set(entry) - set(_KEYS):
        raise UsageError(f"a hint may have {', '.join(_KEYS)}, not {', '.join(map(str, unknown))}")
    rows, epilogue = entry.get("rows"), entry.get("epilogue", "any")
    if epilogue not in _EPILOGUES:
        raise UsageError(f"epilogue is one of {', '.join(_EPILOGUES)}, not {_brief(epilogue)}")
    if rows is not None and (type(rows) is not int or rows < 1):
        raise UsageError(f"rows must be an integer above 0, not {_brief(rows)}")
    tile = tuple(_tile(entry.get("tile", {}), "a hint", words).items())
    return Hint(entry["match"], tile, _stages(entry.get("stages")), epilogue, rows)


def _tile(tile: Any, where: str, known: Sequence[str]) -> dict[str, int]:
    if not isinstance(tile, dict) or set(tile) - set(known):
        raise UsageError(f"{where}: a tile may set {', '.join(known)}, not {_brief(tile)}")
    for name, size in tile.items():
        least = _LEAST.get(name, 0)
        if type(size) is not int or not least <= size <= _LARGEST:
            raise UsageError(f"{name} of {where} must be at least {least}, not {_brief(size)}")
    return dict(tile)


def _stages(stages: Any) -> int | None:
    if stages not in (None, 1, 2):
        raise UsageError(f"stages must be 1 or 2, not {_brief(stages)}")
    return None if stages is None else int(stages)


def _brief(value: Any) -> str:
    """Format a value of a file for a sentence, however large it is."""
    try:
        return reprlib.repr(value)
    except ValueError:  # more digits than Python converts
        return "a very large number"
