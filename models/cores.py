"""Measure how results scale with the cores: ``python -m models.cores [NAME…]``.

Makes models of the zoo, optimizes them in fp32 and bf16 (``--keep all``, several at once), runs
each original and its results in turn, in sessions of one process, with 1, 2, 8 and 16 threads, and
prints a Markdown table: medians in ms, in brackets the median of each round's speed over ONNX
Runtime's fp32 with as many threads, and, if one thread is among the counts, the parallel
efficiency, t₁ / (n tₙ).  Geometric means of all models come last.  ``--batch 8`` runs batches;
``all`` means all models of the zoo.  Results that ``--folder`` has already are not made again.

``--limit 500`` begins no model later than 500 s after the start.  ``--times FILE`` adds what was
measured to a file, leaves out models that are there, and includes them in the means: the same
command again goes on where the last one stopped.

``--traces`` prints, for each result and more than two threads, what the threads do in a run of its
slowest program: as ``tracea bench --profile --timeline`` does, a row each.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from models.make import available, make
from models.versions_in_turn import RacedTimes, TimedVersion, race
from tracea_graph.commands.bench import BenchOptions
from tracea_graph.commands.timeline import record_timeline
from tracea_graph.config import usable_processors
from tracea_graph.onnx_io.model_reader import load
from tracea_graph.pipeline.model_inputs import inputs_to_run
from tracea_graph.views.timeline import Timeline

__all__ = ["add_times", "main", "means_of", "read_times", "rows_of", "trace_row"]

NAMES = ("minilm", "bert-base", "resnet50", "mobilenetv2")
_BUILDS = 16  # at once, at most
_TOGETHER = 8  # models that are made before any of them is timed
_ORIGINAL = "ONNX Runtime"
_FORMS = {"fp32": (), "bf16": ("--precision", "bf16")}

# By number of threads, then by version.
Found = Mapping[int, Mapping[str, RacedTimes]]


def _made(folder: Path, name: str) -> Path:
    """Return the path of an original, written unless it is there."""
    path = folder / f"{name}.onnx"
    return path if path.exists() else make(name, folder)


def _result(original: Path, form: str) -> Path:
    return original.with_name(f"{original.stem}.{form}.onnx")


def _optimize(original: Path, form: str, threads: int) -> str:
    """Write a result that keeps all rewrites; return what went wrong, if anything did."""
    if _result(original, form).exists():
        return ""
    words = [str(original), "-o", str(_result(original, form)), "--keep", "all", "--no-verify"]
    words += ["--effort", "quick", "--threads", f"1,{threads}", "-q", *_FORMS[form]]
    command = (sys.executable, "-m", "tracea_graph", "optimize", *words)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


def _versions(original: Path, forms: Sequence[str]) -> list[TimedVersion]:
    """Return the original and those results that kernels compute."""
    results = {form: _result(original, form) for form in forms}
    made = [
        TimedVersion(form, path)
        for form, path in results.items()
        if path.with_suffix(".so").exists()
    ]
    return [TimedVersion(_ORIGINAL, original), *made]


def rows_of(name: str, found: Found) -> Iterator[str]:
    """Yield the lines of a table for a model."""
    counts = sorted(found)
    for version in found[counts[0]]:
        cells = [name, version]
        times = {n: found[n][version] for n in counts}
        for one in times.values():
            speed = "" if version == _ORIGINAL else f" ({1 / one.ratio:.2f}×)"
            cells.append(f"{one.ms:.3g}{speed}")
        if 1 in counts:
            cells += [f"{100 * times[1].ms / (n * times[n].ms):.0f} %" for n in counts if n > 2]
        yield f"| {' | '.join(cells)} |"


def means_of(all_found: Sequence[Found]) -> Iterator[str]:
    """Yield lines of geometric means over models, of speeds over the original."""
    counts = sorted(all_found[0])
    for version in _FORMS:
        both = [one for one in all_found if version in one[counts[0]]]
        if len(both) < 2:
            continue
        logs = (statistics.fmean(math.log(one[n][version].ratio) for one in both) for n in counts)
        cells = [
            f"geometric mean of {len(both)}",
            version,
            *(f"{math.exp(-v):.2f}×" for v in logs),
        ]
        yield f"| {' | '.join(cells)} |"


_TRACED = (
    "in tasks", "waking up", "starting", "tails of calls", "waiting for others", "between calls",
)  # fmt: skip
"""Shares of the threads' time, as :attr:`Timeline.shares` names them."""


def trace_row(name: str, form: str, timeline: Timeline) -> str:
    """Return the line of a table about one run: times in ms, then shares of the threads' time."""
    times = f"{timeline.us / 1e3:.3g}, {(timeline.alone or 0) / timeline.threads / 1e3:.3g}"
    busy = sum(task.us for task in timeline.tasks)
    slower = f"{busy / timeline.alone:.2f}" if timeline.alone else ""
    shares = [f"{100 * timeline.shares[what]:.0f} %" for what in _TRACED]
    cells = [name, form, str(timeline.threads), times, slower, *shares]
    return f"| {' | '.join(cells)} |"


def _at(batch: int) -> BenchOptions:
    """Return options that select default sizes, or a batch of so many."""
    return BenchOptions(shapes=({"batch": batch},) if batch > 1 else ())


def _trace(originals: Mapping[str, Path], forms: Sequence[str], args: argparse.Namespace) -> None:
    """Print what the threads of every result do."""
    heads = ["model", "", "threads", "run, ideal, ms", "slower", *_TRACED]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name, path in originals.items():
        for form in forms:
            result = _result(path, form)
            for threads in filter(lambda n: n > 2, map(int, args.threads.split(","))):
                if result.with_suffix(".so").exists():
                    options = replace(_at(args.batch), threads=(threads,))
                    print(trace_row(name, form, record_timeline(result, options)), flush=True)


def read_times(path: Path | None, key: str) -> dict[str, Found]:
    """Return what earlier runs added to a file under these settings, by model."""
    if not path or not path.exists():
        return {}
    lines = map(json.loads, path.read_text().splitlines())
    return {
        line["model"]: {
            int(n): {name: RacedTimes(**one) for name, one in row.items()}
            for n, row in line["times"].items()
        }
        for line in lines
        if line["settings"] == key
    }


def add_times(path: Path | None, key: str, name: str, found: Found) -> None:
    """Add what was measured of a model to a file, a line of JSON."""
    if path:
        times = {n: {v: asdict(one) for v, one in row.items()} for n, row in found.items()}
        with path.open("a") as file:
            print(json.dumps({"settings": key, "model": name, "times": times}), file=file)


def _make_results(
    names: Sequence[str], folder: Path, forms: Sequence[str], threads: int
) -> dict[str, Path]:
    """Make originals and results, several at once; return the originals' paths by name."""
    with ThreadPoolExecutor(min(_BUILDS, usable_processors())) as pool:
        originals = dict(zip(names, pool.map(partial(_made, folder), names), strict=True))
        pairs = [(path, form) for path in originals.values() for form in forms]
        work = partial(_optimize, threads=threads)
        errors = pool.map(work, (path for path, _ in pairs), (form for _, form in pairs))
        for (path, form), error in zip(pairs, errors, strict=True):
            if error:
                print(f"{path.stem}, {form}: {error}", file=sys.stderr)
    return originals


def _race(name: str, path: Path, counts: Sequence[int], args: argparse.Namespace) -> Found:
    """Time a model's versions, and print its rows."""
    inputs = inputs_to_run(load(path, inline=True), _at(args.batch).inputs)
    feed = next(iter(inputs.timing.values()))
    versions = _versions(path, args.forms.split(","))
    found = race(versions, counts, args.rounds, args.seconds, feed)
    print("\n".join(rows_of(name, found)), flush=True)
    return found


def _measure(names: Sequence[str], folder: Path, args: argparse.Namespace) -> None:
    start = time.monotonic()
    counts, forms = list(map(int, args.threads.split(","))), args.forms.split(",")
    names = list(available()) if "all" in names else list(names)
    if args.traces:
        return _trace(_make_results(names, folder, forms, max(counts)), forms, args)
    key = f"threads {args.threads}, {args.forms}, batch {args.batch}"
    earlier = read_times(args.times, key)
    efficient = [n for n in counts if n > 2 and 1 in counts]
    heads = [*map(str, counts), *(f"efficiency at {n}" for n in efficient)]
    print(f"| model | | {' | '.join(heads)} |\n|---|---|{'---|' * len(heads)}")
    for name in filter(earlier.__contains__, names):
        print("\n".join(rows_of(name, earlier[name])))
    all_found, left = [earlier[name] for name in names if name in earlier], list[str]()
    waiting = [name for name in names if name not in earlier]
    for i in range(0, len(waiting), _TOGETHER):
        some = waiting[i : i + _TOGETHER]
        late = time.monotonic() - start > args.limit
        originals = {} if late else _make_results(some, folder, forms, max(counts))
        for name in some:
            if name not in originals or time.monotonic() - start > args.limit:
                left.append(name)
                continue
            all_found.append(_race(name, originals[name], counts, args))
            add_times(args.times, key, name, all_found[-1])
        for path in () if args.folder else filter(Path.is_file, folder.iterdir()):
            path.unlink()  # the zoo's weights and results are 20 GB
    for line in means_of(all_found) if all_found else ():
        print(line)
    if left:
        print(f"not measured within {args.limit:g} s: {', '.join(left)}")


def main(argv: Sequence[str] | None = None) -> int:
    """Optimize, race, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m models.cores", description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME")
    parser.add_argument("--threads", default="1,2,8,16")
    parser.add_argument("--forms", default="fp32,bf16")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.25, help="of a version's turn")
    parser.add_argument("--traces", action="store_true", help="show what threads do instead")
    parser.add_argument("--folder", type=Path, help="where models are written, and stay")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds; see above")
    parser.add_argument("--times", type=Path, metavar="FILE", help="add to it; see above")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="tracea-") as scratch:
        folder = args.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        _measure(args.names, folder, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
