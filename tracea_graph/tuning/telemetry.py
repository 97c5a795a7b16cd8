"""Telemetry: write what tuning measured to local files, a row at a time.

One JSONL file per run under ``CACHE/telemetry``, with a row per trial and one per finished region.
Times are ms per kernel call; GFLOP/s and GB/s follow from the median, counting the weights, x and
the results once each.
"""

from __future__ import annotations

import csv
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, TextIO

from tracea_graph.toolchain.cache_trust import make_private
from tracea_graph.tuning.tuner_events import CaseFinished, Event, TrialMeasured, TuningStarted
from tracea_graph.tuning.tuning_problem import Case

__all__ = ["FOLDER", "Telemetry", "read_telemetry_rows", "telemetry_files", "write_csv"]

FOLDER = "telemetry"
Row = dict[str, Any]
_MOST_RUNS = 100
"""Maximum number of files; the oldest are removed first."""


class Telemetry(AbstractContextManager["Telemetry"]):
    """A listener that writes ``folder/TIME-NAME.jsonl``; use it in a ``with`` statement.

    If the folder cannot be written, rows are discarded.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{name}.jsonl"
        self._start, self._file = time.monotonic(), _open(self.path)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    def __call__(self, event: Event) -> None:
        """Write the rows of an event."""
        for row in _rows(event):
            stamped = {"seconds": round(time.monotonic() - self._start, 3), **row}
            if self._file is not None:
                self._file.write(json.dumps(stamped) + "\n")
                self._file.flush()


def telemetry_files(folder: Path) -> list[Path]:
    """Return the files of earlier runs, newest first."""
    return sorted(folder.glob("*.jsonl"), reverse=True)


def read_telemetry_rows(path: Path) -> list[Row]:
    """Return a run's rows, without invalid lines such as the last one of a killed run."""
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict) and "what" in row:
                rows.append(row)
    return rows


def write_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows as a table; a schedule's settings become separate columns."""
    flat = [_flat(row) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(flat)


def _flat(row: Mapping[str, Any]) -> Row:
    config = row.get("config") or {}
    return {k: v for k, v in row.items() if k != "config"} | dict(config)


def _rows(event: Event) -> Iterator[Row]:
    if isinstance(event, TuningStarted):
        for one in event.known:
            hit = one.source == "cache"
            yield {**_about("cached", one.case), "hit": hit, "why": one.why, "gain": one.gain}
    elif isinstance(event, TrialMeasured):
        yield {
            **_about("trial", event.case), "stage": event.stage, "threads": event.threads,
            "config": asdict(event.schedule), "fault": event.fault, **_times(event),
        }  # fmt: skip
    else:
        yield _region(event)


def _region(event: CaseFinished) -> Row:
    tuned = event.tuned
    return {
        **_about("region", tuned.case), "source": tuned.source, "gain": tuned.gain,
        "share": tuned.share, "config": asdict(tuned.schedule), "trials": event.trials,
        "took": round(event.seconds, 3),
    }  # fmt: skip


def _about(what: str, case: Case) -> Row:
    p = case.problem
    return {"what": what, "region": str(case), "dtype": p.dtype, "rows": case.rows, **p.sizes}


def _times(event: TrialMeasured) -> Row:
    if event.times is None or not event.times.b_ms:
        return {}
    ms, default = median(event.times.b_ms), median(event.times.a_ms)
    case = event.case
    return {
        "ms": ms, "p95_ms": _percentile(event.times.b_ms, 0.95), "default_ms": default,
        "gflops": case.flops / ms * 1e-6, "gbytes": case.moved / ms * 1e-6,
        "pairs": len(event.times.b_ms), "gain": _shortest_gain(event),
    }  # fmt: skip


def _shortest_gain(event: TrialMeasured) -> float:
    assert event.times is not None
    return min(event.times.a_ms) / min(event.times.b_ms)


def _percentile(numbers: Iterable[float], share: float) -> float:
    """Return the smallest number that a share of the numbers do not exceed."""
    ordered = sorted(numbers)
    return ordered[math.ceil(share * len(ordered)) - 1]


def _open(path: Path) -> TextIO | None:
    with suppress(OSError):
        make_private(path.parent)
        for old in telemetry_files(path.parent)[_MOST_RUNS - 1 :]:
            old.unlink(missing_ok=True)
        return path.open("w", encoding="utf-8")
    return None
