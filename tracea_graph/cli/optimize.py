"""``tracea-optimize``: optimize models one after another, and report on each."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from tracea_graph import api
from tracea_graph.cli.arguments import options_from_args, output_is_folder
from tracea_graph.cli.console import make_console, print_written_files
from tracea_graph.cli.error_messages import print_error, report_failure
from tracea_graph.cli.progress import StepDisplay
from tracea_graph.cli.repro import failure_outcome, pack_failure
from tracea_graph.cli.termination_signals import interrupt_exit_code
from tracea_graph.commands.inspect import explain
from tracea_graph.commands.report_profiles import profile_report_models
from tracea_graph.commands.repro import RunOutcome
from tracea_graph.errors import TraceaError
from tracea_graph.options import Options
from tracea_graph.pipeline.output_files import check_file, check_folder, write_text
from tracea_graph.target import target_of
from tracea_graph.views import (
    Report,
    render_report,
    render_rules,
    render_stages,
    report_page,
    rule_rows,
)
from tracea_graph.views.explain import render_explanation

__all__ = ["run_optimize"]


def run_optimize(args: argparse.Namespace, console: Console) -> int:
    """Optimize every model and return the exit code; a failure does not stop the other models."""
    console.quiet = args.quiet
    options, folder = options_from_args(args), output_is_folder(args)
    if options.until is not None:
        return _show_stages(args, options, options.until, console)
    if args.report is not None:
        check_file(args.report, "--report", args.models)
    if args.save_lock is not None:
        check_file(args.save_lock, "--save-lock", args.models)
    if args.keep_sources is not None:
        check_folder(args.keep_sources, "--keep-sources")
    reports, codes = list[Report](), list[int]()
    for outcome in _outcomes(options, folder, args):
        if outcome.report is None:
            error = outcome.error or AssertionError("an outcome has a report or an error")
            model = outcome.source if len(args.models) > 1 else None
            codes.append(report_failure(error, args.verbose, model))
            if (failure := failure_outcome(error)) is not None:
                _pack(outcome.source, failure, options, args)
            continue
        reports.append(outcome.report)
        if crash := outcome.report.crash:
            print_error(crash)
            improved = outcome.report.improved
            _pack(outcome.source, RunOutcome(0, crash, improved, True), options, args)
        if not args.json:
            console.print(render_report(reports[-1], args.verbose))
        if args.explain and not (args.json or args.quiet):
            _explain(outcome.source, options, reports[-1], console)
        if outcome.interrupt is not None:
            print_error("interrupted: the first verified result was kept")
            codes.append(
                0 if options.keep_on_interrupt else interrupt_exit_code(outcome.interrupt)
            )
    _finish(reports, options, args, console)
    return codes[0] if codes else 0


def _pack(model: Path, outcome: RunOutcome, options: Options, args: argparse.Namespace) -> None:
    """Pack a failure, and print where the pack is."""
    models = {str(path) for path in args.models}
    words = [word for word in args.words if word not in models and word != "optimize"]
    folder = options.environment.cache / "repro"
    try:
        print_error(
            f"to report this: {pack_failure(model, words, outcome, folder)}, without weights"
        )
    except (TraceaError, OSError) as why:
        print_error(f"no repro pack was written: {why}")


def _outcomes(
    options: Options, folder: bool, args: argparse.Namespace
) -> Iterator[api.OptimizeOutcome]:
    """Yield every model's outcome; the current step is shown until then."""
    console = make_console(stderr=True, quiet=args.quiet or args.json)
    shown = StepDisplay(args.models[0].name, console)
    outcomes = api.optimize_many(args.models, options, lambda s: shown(s), folder=folder)
    for model in (*args.models[1:], None):
        with shown:
            outcome = next(outcomes, None)
        if outcome is None:
            return
        yield outcome
        shown = StepDisplay(model.name if model else "", console)


def _explain(source: Path, options: Options, report: Report, console: Console) -> None:
    """Print what ``tracea explain`` prints, with the gains measured in this run."""
    target = target_of(options.target, options.precision) if options.keep == "faster" else None
    explanation = explain(source, options, result=Path(report.files[-1]), measured_for=target)
    console.print(render_explanation(explanation))


def _finish(
    reports: Sequence[Report], options: Options, args: argparse.Namespace, console: Console
) -> None:
    """Write the outputs that cover all models, the report page and the JSON; name the files."""
    if args.report is not None and reports:
        status = make_console(stderr=True, quiet=args.quiet or args.json).status("profiling")
        with status:
            profiles = {
                r.output: profile_report_models(r, options, status.update) for r in reports
            }
        write_text(args.report, report_page(*reports, profiles=profiles))
    for path in (args.report, args.save_lock):
        if path is not None and path.exists() and not args.json:
            print_written_files(console, path)
    if args.json and len(args.models) == 1:
        sys.stdout.write("".join(report.to_json() for report in reports))
    elif args.json:
        sys.stdout.write("[\n" + ",\n".join(report.to_json() for report in reports) + "]\n")


def _show_stages(args: argparse.Namespace, options: Options, until: str, console: Console) -> int:
    shown = []
    for model in args.models:
        made = api.stage_results(model, until, options)
        for warning, fault in made.trace.faults().items():
            print_error(f"warning: {warning}")
            sys.stderr.write(fault if args.verbose else "")
        if args.json:
            shown.append(made.to_dict())
            continue
        console.print(render_stages(made.graph, made.programs, made.sources))
        if args.verbose and until != "import":
            console.print(render_rules(rule_rows(made.trace)))
    if args.json:
        json.dump(shown if len(args.models) > 1 else shown[0], sys.stdout, indent=1)
        sys.stdout.write("\n")
    return 0
