"""``tracea cache``: list, prune, export and import tuning results."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from tracea_graph.config import Environment
from tracea_graph.errors import UsageError
from tracea_graph.json_documents import to_json_data
from tracea_graph.target import BACKENDS, read_environment
from tracea_graph.tuning import CACHE_FILE, CacheEntry, TuningCache
from tracea_graph.tuning.cache_key import machine_facts
from tracea_graph.views.terminal_tables import new_table
from tracea_graph.views.tuning_json import CachedResult

__all__ = ["run_cache"]

_DAY = 86400.0


def run_cache(args: argparse.Namespace, console: Console) -> int:
    """Run one action and return the exit code.  Raises UsageError for unusable files."""
    environment = read_environment(args.cache)
    with TuningCache(environment.cache / CACHE_FILE) as cache:
        if args.action == "ls":
            _list(cache, console, args.json, environment)
        elif args.action == "export":
            console.print(_export(cache, args.file), soft_wrap=True, end="")
        elif args.action == "import":
            console.print(f"{_results(_import(cache, args.file))} read")
        else:
            gone = [key for key, entry in cache if _is_stale(entry, args, environment)]
            cache.remove(gone)
            console.print(f"{_results(len(gone))} removed, {len(cache)} left")
    return 0


def _list(cache: TuningCache, console: Console, as_json: bool, environment: Environment) -> None:
    entries = list(cache)
    if as_json:
        rows = [
            CachedResult(key, e.what, e.about, e.value, len(e.evidence), e.final, e.written)
            for key, e in entries
        ]
        console.print(json.dumps(to_json_data(rows), indent=1), markup=False, soft_wrap=True)
        return
    here = _facts(environment)
    table = new_table("tuning results")
    spare = {"key": 2, "made": 1}
    for name in ("problem", "threads", "dtype", "gain", "trials", "state", "made", "key"):
        table.add_column(
            name,
            "right" if name in ("gain", "trials") else "left",
            folds=name in ("problem", "state"),
            spare=spare.get(name, 0),
        )
    for key, entry in entries:
        gain = entry.value.get("gain", 1.0) if isinstance(entry.value, dict) else 1.0
        usable = any(_matches(entry, facts) for facts in here)
        state = ("final" if entry.final else "unfinished") + ("" if usable else ", unusable here")
        table.add_row(
            entry.what, entry.about.get("threads", "?"), entry.about.get("dtype", "?"),
            f"{gain:.3f}×", str(len(entry.evidence)), state,
            time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.written)), key[:10],
        )  # fmt: skip
    console.print(table)
    console.print(f"{_results(len(entries))} in {escape(str(cache.path))}", soft_wrap=True)


def _results(count: int) -> str:
    return f"{count} result{'s' * (count != 1)}"


def _export(cache: TuningCache, name: str) -> str:
    lines = [json.dumps({"key": key, **entry.to_json()}) + "\n" for key, entry in cache]
    if name == "-":
        sys.stdout.write("".join(lines))
        return ""
    try:
        Path(name).write_text("".join(lines), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{name} cannot be written: {error.strerror}") from None
    return f"{_results(len(lines))} written to {escape(name)}\n"


def _import(cache: TuningCache, name: str) -> int:
    """Import the entries of a file: all, or none if one is invalid."""
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{name} is not a text file") from None
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}") from None
    entries = list(_entries(text, "standard input" if name == "-" else name))
    for key, entry in entries:
        cache.put(key, entry)
    return len(entries)


def _entries(text: str, name: str) -> Iterator[tuple[str, CacheEntry]]:
    for number, line in enumerate(text.splitlines(), 1):
        try:
            row = json.loads(line)
            yield str(row["key"]), CacheEntry.from_json(row)
        except (KeyError, TypeError, ValueError):
            raise UsageError(f"line {number} of {name} is not an exported result") from None


def _is_stale(entry: CacheEntry, args: argparse.Namespace, environment: Environment) -> bool:
    """Whether to remove an entry: nothing on this machine can use it, or the user asked for it."""
    here = _facts(environment)
    own = any(entry.about.get("machine") == facts["machine"] for facts in here)
    if args.all or (args.unfinished and not entry.final) or (args.other_machines and not own):
        return True
    if args.older is not None and time.time() - entry.written > args.older * _DAY:
        return True
    return own and not any(_matches(entry, facts) for facts in here)


def _facts(environment: Environment) -> list[dict[str, str]]:
    """Return what results depend on, on this machine, for every backend that has schedules."""
    tunable = (b for b in BACKENDS if b.schedule_space is not None)
    return [machine_facts(backend.fingerprint(), environment) for backend in tunable]


def _matches(entry: CacheEntry, facts: Mapping[str, str]) -> bool:
    return all(entry.about.get(name) == value for name, value in facts.items())
