"""Run the zoo: ``python -m models.bench [--only NAME[,NAME]] [--write FILE.md|-]``.

Each model is made, optimized and timed against ONNX Runtime and OpenVINO, on one and two threads
unless ``--threads`` says otherwise.  Each runs in its own process, one after another, so that
memory is bounded and a failure costs one row of the table.  A model that no rewrite made faster is
kept unchanged and counts as 1.  Some are timed at further sizes (``models.sizes``), one row each.

Finished rows are stored in ``--folder``, with the models while these exist; an interrupted run
resumes after them.  A row is valid while the tool's sources, the installed packages and the
options are unchanged; ``--no-cache`` ignores stored rows.  The table goes between the marker lines
of its precision in models/RESULTS.md, or into the file that ``--write`` names.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from models.make import FORMS, available
from models.score import THREADS, Score, markdown, marks, replace_table
from tracea_graph.config import Environment
from tracea_graph.errors import UsageError

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "models" / "RESULTS.md"
_SOURCES = ("tracea_graph", "passes", "kernels", "models")
_PACKAGES = ("onnxruntime", "openvino")
_KINDS = (".py", ".h", ".in", ".cpp", ".gz")

Row = Mapping[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run the models, print and write the table."""
    args = _parser().parse_args(argv)
    names = tuple(args.only.split(",")) if args.only else available()
    target = None if args.write == "-" else Path(args.write)
    try:
        _check(names, target, args.precision)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    rows = list(_rows(names, args))
    scores = [Score.of(line) for row in rows for line in row["scores"]]
    for row in rows:
        for text in row["warnings"]:
            print(f"{row['scores'][0]['name']}: {text}", file=sys.stderr)
    made = "; ".join(dict.fromkeys(row["made"] for row in rows if row["made"]))
    table = markdown(
        scores,
        f"{made}; {args.precision}; speeds over ONNX Runtime at all optimizations, paired and "
        "interleaved, medians; geometric means over all models at their first sizes, kept ones "
        "as 1.",
        args.threads,
    )
    print(table)
    if target is not None:
        replace_table(target, args.precision, table)
    return 1 if any(s.failed for s in scores) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m models.bench", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--only", metavar="NAME[,NAME]", default="", help="these models of the zoo (default: all)")
    add("--precision", default="fp32", help="what results may compute in")
    add("--keep", choices=("faster", "all"), default="faster")
    add("--budget", type=float, default=120.0, help="seconds to decide a model in")
    add("--pairs", type=int, default=40, help="rounds of each comparison")
    add("--threads", type=_counts, default=THREADS, metavar="N[,M]")
    add("--limit", type=float, default=1800.0, help="seconds after which a model has failed")
    add("--folder", type=Path, default=Environment().cache / "zoo", help="for models and rows")
    add("--no-cache", action="store_true", help="run models again whose rows are there")
    add("--keep-models", action="store_true", help="leave models and results in the folder")
    add("--write", default=str(RESULTS), metavar="FILE.md", help="or - for none")
    return parser


def _counts(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _check(names: Sequence[str], target: Path | None, precision: str) -> None:
    """Raise UsageError now for mistakes that would otherwise show after all models ran."""
    for name in names:
        if name not in (known := (*available(), *FORMS)):
            raise UsageError(f"no model '{name}' in the zoo, only {', '.join(known)}")
    begin, _ = marks(precision)
    if target is not None and not (target.is_file() and begin in target.read_text("utf-8")):
        raise UsageError(f"{target} lacks the line {begin}, after which the table goes")


def _rows(names: Sequence[str], args: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows in the order of the names, stored ones and new ones."""
    args.folder.mkdir(parents=True, exist_ok=True)
    threads = ",".join(map(str, args.threads))
    settings = [args.keep, str(args.budget), str(args.pairs), args.precision, threads]
    key = _key(settings)
    for index, name in enumerate(names):
        place = args.folder / f"{name}.{args.precision}.row.json"
        row = _stored(place, key) if not args.no_cache else None
        where = f"[{index + 1}/{len(names)}] {name}"
        if row is None:
            print(f"{where} …", file=sys.stderr, flush=True)
            row = {**_run(name, args, settings), "key": key}
            _whole(place, json.dumps(row, indent=1))
        else:
            print(f"{where}: done before", file=sys.stderr, flush=True)
        yield row


def _stored(place: Path, key: str) -> Row | None:
    """Return a finished row with this key; a failed model is run again."""
    try:
        row: Row = json.loads(place.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return row if row.get("key") == key and not _failed(row) else None


def _run(name: str, args: argparse.Namespace, settings: Sequence[str]) -> Row:
    """Make, optimize and time one model in its own process."""
    folder = args.folder / name
    folder.mkdir(exist_ok=True)
    answer = folder / "answer.json"
    answer.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "models.bench_worker",
        name,
        str(folder),
        str(answer),
        *settings,
    ]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    child = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path}, start_new_session=True
    )
    try:
        code: int | str = child.wait(args.limit)
    except subprocess.TimeoutExpired:
        code = f"took over {args.limit:.0f} s"
    finally:
        if child.poll() is None:  # timeout or interrupt: kill its whole process group
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    try:
        row: Row = json.loads(answer.read_text("utf-8"))
    except (OSError, ValueError):
        why = code if isinstance(code, str) else _ending(code)
        row = {"scores": [{"name": name, "failed": why}], "warnings": [], "made": ""}
    if not args.keep_models:
        shutil.rmtree(folder)
    if why := _failed(row):
        row = {**row, "scores": [{**_blank(), **line} for line in row["scores"]]}
        print(f"{name} failed: {why}", file=sys.stderr)
    return row


def _failed(row: Row) -> str:
    return str(row["scores"][0].get("failed", ""))


def _ending(code: int) -> str:
    return f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def _blank() -> dict[str, Any]:
    return {"ms": None, "ratios": None}


def _key(settings: Sequence[str]) -> str:
    """Return a key over what a row depends on: sources, installed runtimes, options."""
    digest = hashlib.sha256("\0".join(settings).encode())
    for folder in _SOURCES:
        for path in sorted(p for p in (ROOT / folder).rglob("*") if p.suffix in _KINDS):
            digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    for package in _PACKAGES:
        try:
            digest.update(importlib.metadata.version(package).encode())
        except importlib.metadata.PackageNotFoundError:
            digest.update(b"-")
    return digest.hexdigest()[:16]


def _whole(path: Path, text: str) -> None:
    """Write a file atomically, by renaming it into place."""
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


if __name__ == "__main__":
    sys.exit(main())
