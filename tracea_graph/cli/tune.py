"""``tracea tune``: search schedules for a model's matmuls; ``worker`` and ``report``."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from tracea_graph.cli.console import print_written_files
from tracea_graph.cli.option_flags import options_from_flags
from tracea_graph.cli.progress import ProgressBar
from tracea_graph.commands.autotuner import tune_problem
from tracea_graph.commands.tune import TunedModel, tune_model
from tracea_graph.errors import UsageError
from tracea_graph.json_documents import to_json_data
from tracea_graph.options import OPTIONS, Options
from tracea_graph.options.config_files import save_config
from tracea_graph.pipeline.output_files import check_file, write_text
from tracea_graph.problem_descriptor import ProblemDescriptor
from tracea_graph.target import BACKENDS, read_environment
from tracea_graph.tuning import Event, TuningOptions
from tracea_graph.tuning.machine_tuner import machine_tuner
from tracea_graph.tuning.schedule_hints import hint_of_result, plugin_candidates
from tracea_graph.tuning.telemetry import (
    FOLDER,
    Telemetry,
    read_telemetry_rows,
    telemetry_files,
    write_csv,
)
from tracea_graph.views import plain_text
from tracea_graph.views.tuning_json import TunedCase, TunedReport
from tracea_graph.views.tuning_tables import (
    convergence_curves,
    convergence_svg,
    render_curves,
    render_tuned,
)

__all__ = ["run_tune", "run_tune_report", "run_worker"]

_SAVED = ("threads", "shapes", "precision", "target", "seed", "storage")
"""Options that are saved to a file for ``--config``."""


def run_tune(args: argparse.Namespace, console: Console) -> int:
    """Tune models one after another and return the exit code."""
    work: list[Path | ProblemDescriptor] = [*args.models, *args.problems]
    if not work:
        raise UsageError("name a model or a --problem; tracea tune --help shows both")
    if args.save_config is not None:
        check_file(args.save_config, "--save-config", args.models)
    console.quiet = args.quiet
    options = options_from_flags(args, budget=args.budget / len(work), effort="thorough")
    found = [_tune(one, options, args, console) for one in work]
    if args.save_config is not None:
        _save(args, found)
    if args.json:
        documents = to_json_data([_document(one) for one in found])
        console.print(json.dumps(documents, indent=1), markup=False, soft_wrap=True)
    return 0


def _tune(
    what: Path | ProblemDescriptor, options: Options, args: argparse.Namespace, console: Console
) -> TunedModel:
    silent = args.quiet or args.json
    folder = options.environment.cache / FOLDER
    name, stem = (what.name, what.stem) if isinstance(what, Path) else (str(what), what.kind)
    with Telemetry(folder, stem) as telemetry, ProgressBar(name, silent) as bar:

        def listen(event: Event) -> None:
            telemetry(event)
            bar(event)

        how: dict[str, Any] = {
            "lost_after": args.lost_after, "listen": listen, "propose": plugin_candidates(),
        }  # fmt: skip
        if isinstance(what, Path):
            found = tune_model(what, options, **how)
        else:
            found = replace(tune_problem(what, options, **how).tuned, path=Path(name))
    if not args.json:
        console.print(escape(plain_text(name)), highlight=False)
        console.print(render_tuned(found.tuned, found.counts, found.saved))
    return found


def run_worker(args: argparse.Namespace, console: Console) -> int:
    """Run trials that tuning runs on other machines have published; return the exit code.

    Ends when the budget is spent or when there was no work for the idle time.
    """
    from tracea_graph.tuning.distributed_tuning import run_published_trials

    console.quiet = args.quiet
    environment = read_environment(args.cache)
    options = TuningOptions(
        (), budget=args.budget, seed=args.seed, storage=args.storage, lost_after=args.lost_after
    )
    with Telemetry(environment.cache / FOLDER, f"worker{os.getpid()}") as telemetry:
        opened = partial(
            machine_tuner, environment=environment, listen=telemetry, propose=plugin_candidates()
        )
        count = run_published_trials(
            options, BACKENDS, opened, idle=args.idle, say=lambda s: console.print(s)
        )
    console.print(f"{count} cases were tuned with this machine's help")
    return 0


def run_tune_report(args: argparse.Namespace, console: Console) -> int:
    """Show one tuning run and return the exit code.  Raises UsageError if there is none."""
    environment = read_environment(args.cache)
    known = [args.run] if args.run else telemetry_files(environment.cache / FOLDER)[:1]
    if not known:
        raise UsageError("nothing was tuned yet: tracea tune MODEL.onnx")
    try:
        rows = read_telemetry_rows(known[0])
    except OSError as error:
        raise UsageError(f"{known[0]} cannot be read: {error.strerror}") from None
    if args.csv is not None:
        check_file(args.csv, "--csv", known)
        write_csv(rows, args.csv)
    found = convergence_curves(rows)
    if args.svg is not None:
        check_file(args.svg, "--svg", known)
        write_text(args.svg, convergence_svg(found, known[0].stem))
    if args.json:
        console.print(json.dumps(rows, indent=1), markup=False)
        return 0
    hits = sum(bool(row.get("hit")) for row in rows)
    regions = "1 region" if len(found) == 1 else f"{len(found)} regions"
    console.print(f"{known[0].name}: {regions} measured, {hits} known before")
    console.print(render_curves(found))
    print_written_files(console, *filter(None, (args.csv, args.svg)))
    return 0


def _save(args: argparse.Namespace, found: Sequence[TunedModel]) -> None:
    settings = {OPTIONS[keyword].name: getattr(args, keyword) for keyword in _SAVED}
    settings |= {"threads": list(args.threads), "shape": [*map(_sizes, args.shapes)]}
    tuned = {t.case: t for one in found for t in one.tuned if t.gain > 1 or t.source == "hint"}
    save_config(args.save_config, settings, [hint_of_result(t) for t in tuned.values()])


def _sizes(shape: dict[str, int]) -> str:
    return ",".join(f"{name}={size}" for name, size in shape.items())


def _document(found: TunedModel) -> TunedReport:
    cases = (
        TunedCase(
            str(t.case), found.counts.get(t.case, 0), t.share, t.source, t.why, t.gain,
            vars(t.schedule),
        )
        for t in found.tuned
    )  # fmt: skip
    return TunedReport(str(found.path), found.saved, tuple(cases))
