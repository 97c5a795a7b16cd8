"""``tracea bench``: compare models and runtimes, or profile one model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from tracea_graph.cli.console import print_written_files
from tracea_graph.cli.option_flags import options_from_flags
from tracea_graph.commands.bench import BenchOptions, bench
from tracea_graph.commands.drop_slower_kernels import retune
from tracea_graph.commands.profile import profile
from tracea_graph.commands.serving import compare_serving
from tracea_graph.commands.timeline import record_timeline
from tracea_graph.errors import UsageError
from tracea_graph.pipeline.output_files import check_file, write_text
from tracea_graph.toolchain.object_cache import write_atomically
from tracea_graph.views.bench import render_bench
from tracea_graph.views.profile_record import Profile
from tracea_graph.views.profile_table import render_profile
from tracea_graph.views.retune_text import render_retuned
from tracea_graph.views.roofline import check_png, profile_page, roofline_png, roofline_svg
from tracea_graph.views.serving import render_serving
from tracea_graph.views.task_table import render_tasks
from tracea_graph.views.thread_table import render_threads
from tracea_graph.views.timeline import Timeline, timeline_svg

__all__ = ["run_bench"]

_PICTURES = ("html", "svg", "png", "timeline")
_ALWAYS = "ort"


def run_bench(args: argparse.Namespace, console: Console) -> int:
    """Measure, print, and return the exit code.  Raises UsageError for invalid arguments."""
    if args.retune:
        return _retune(args, console)
    options = _options(args)
    progress = Console(stderr=True, quiet=args.json, highlight=False)
    pictures = {kind: getattr(args, kind) for kind in _PICTURES if getattr(args, kind) is not None}
    for kind, path in pictures.items():
        check_file(path, f"--{kind}", args.models)
    if pictures and not args.profile:
        raise UsageError(f"--{next(iter(pictures))} shows a profile: add --profile")
    if "png" in pictures:
        check_png()
    if args.profile and len(args.models) > 1:
        raise UsageError("--profile takes one model: profile them one after the other")
    if args.profile and args.sessions:
        raise UsageError("--sessions runs whole models: leave --profile out")
    with progress.status("starting") as status:
        if args.sessions:
            served = compare_serving(args.models, args.sessions, options, status.update)
        elif args.profile:
            profiled = profile(args.models[0], options, status.update)
            timeline = record_timeline(args.models[0], options) if args.timeline else None
        else:
            report = bench(args.models, options, status.update)
    if args.sessions:
        _show(console, served.to_json() if args.json else render_serving(served))
    elif args.profile:
        _draw(profiled, timeline, pictures)
        _show(console, profiled.to_json() if args.json else render_profile(profiled, args.verbose))
        if timeline and not args.json:
            _show(console, render_tasks(timeline))
            if not timeline.processors and timeline.threads > 1:
                _show(console, render_threads(timeline))
            _show(console, timeline.summary)
        if not args.json:
            print_written_files(console, *pictures.values())
    else:
        _show(console, report.to_json() if args.json else render_bench(report))
    return 0


def _retune(args: argparse.Namespace, console: Console) -> int:
    if args.profile or len(args.models) > 1:
        raise UsageError("--retune takes one result and no --profile")
    options = options_from_flags(args)
    progress = Console(stderr=True, quiet=args.json, highlight=False)
    with progress.status("starting") as status:
        found = retune(args.models[0], options, status.update)
    _show(console, found.to_json() if args.json else render_retuned(found))
    return 0


def _options(args: argparse.Namespace) -> BenchOptions:
    if args.seconds <= 0:
        raise UsageError(f"--seconds must be above 0, not {args.seconds:g}")
    baselines: Sequence[str] | None = args.baselines
    if baselines is not None:
        baselines = tuple(name for name in baselines if name != _ALWAYS)
    return BenchOptions(
        threads=args.threads,
        shapes=tuple(args.shapes),
        pairs=args.pairs,
        seconds=args.seconds,
        baselines=baselines,
        data=args.data,
        seed=args.seed,
    )


def _draw(profiled: Profile, timeline: Timeline | None, pictures: dict[str, Path]) -> None:
    for kind, path in pictures.items():
        if kind == "timeline" and timeline:
            write_text(path, timeline_svg(timeline))
        elif kind == "png":
            _write_bytes(path, roofline_png(profiled))
        else:
            write_text(path, (profile_page if kind == "html" else roofline_svg)(profiled))


def _write_bytes(path: Path, data: bytes) -> None:
    try:
        write_atomically(path, data)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _show(console: Console, what: Any) -> None:
    console.print(what, markup=False, soft_wrap=isinstance(what, str))
