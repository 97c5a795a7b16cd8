"""``tracea-optimize`` and ``tracea``: parse, call the API, print."""

from __future__ import annotations

import argparse
import errno
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.markup import escape

from tracea_graph import api
from tracea_graph.cli.arguments import optimize_parser, options_of, tool_parser, wants_folder
from tracea_graph.cli.bench import run_bench
from tracea_graph.cli.cache import run_cache
from tracea_graph.cli.doctor import run_doctor
from tracea_graph.cli.inspect import run_explain, run_inspect
from tracea_graph.cli.settings import with_config
from tracea_graph.cli.stopping import code_of, stoppable
from tracea_graph.cli.sweep import run_sweep
from tracea_graph.cli.tune import run_tune, run_tune_report, run_worker, whole_command
from tracea_graph.cli.verify import run_strip, run_verify
from tracea_graph.commands.inspect import explain
from tracea_graph.errors import BuildError, TraceaError, UsageError
from tracea_graph.options import Options
from tracea_graph.pipeline.output import check_file, check_folder, write_text
from tracea_graph.target import read_environment, target_of
from tracea_graph.views import (
    Report,
    plain,
    render_report,
    render_rules,
    render_stages,
    report_page,
    rule_rows,
)
from tracea_graph.views.explain import render_explanation

__all__ = ["main", "optimize_main"]

INTERNAL = 70
_NARROWEST, _UNLIMITED = 60, 100_000
_STDERR = 2
_LONGEST = 6000
"""Characters of a complaint: two paths, and words about them."""

_PLAIN: Mapping[str, Callable[[argparse.Namespace, Console], int]] = MappingProxyType(
    {
        "inspect": run_inspect,
        "explain": run_explain,
        "bench": run_bench,
        "verify": run_verify,
        "strip": run_strip,
        "doctor": run_doctor,
        "tune": run_tune,
        "tune worker": run_worker,
        "tune report": run_tune_report,
        "cache": run_cache,
    }
)
"""Subcommands that print for themselves."""


def optimize_main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``tracea-optimize``; returns the exit code."""
    return _guarded(optimize_parser, argv, lambda args: _optimize(args))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``tracea``; returns the exit code."""
    return _guarded(tool_parser, argv, _command)


def _command(args: argparse.Namespace) -> int:
    if args.command in _PLAIN:
        return _PLAIN[args.command](args, _console())
    if args.command == "sweep":
        return _sweep(args)
    return _optimize(args)


# ---- errors ----------------------------------------------------------------------------


def _guarded(
    parser: Callable[[], argparse.ArgumentParser],
    argv: Sequence[str] | None,
    run: Callable[[argparse.Namespace], int],
) -> int:
    """Run a command; whatever goes wrong becomes one line on stderr and an exit code."""
    _hold_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a file name may be no text in this locale
    verbose = 0
    try:
        words = whole_command(sys.argv[1:] if argv is None else argv)
        args = parser().parse_args(with_config(words))
        verbose = getattr(args, "verbose", 0)
        read_environment()  # says so if a variable makes no sense, whatever the command
        with stoppable():
            code = run(args)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read the output has left
        _drop_stdout()
        return 0
    except KeyboardInterrupt as error:
        by = f" by {error}" if str(error) else ""
        with suppress(OSError):  # the terminal may be what has gone
            _complain(
                f"interrupted{by}: no half-written file is left; "
                "what was compiled or measured is kept"
            )
        return code_of(error)
    except Exception as error:  # the last line of defence: no traceback unless asked for
        return _failed(error, verbose)


def _failed(error: Exception, verbose: int, model: Path | None = None) -> int:
    """Say what went wrong, with which ``model`` where there are several; return the exit code."""
    about = f"error: {model}: " if model else "error: "
    if isinstance(error, TraceaError):
        _complain(f"{about}{error}")
        if verbose and isinstance(error, BuildError) and error.command:
            sys.stderr.write(f"{error.command}\n{error.stderr}\n")
        return error.exit_code
    if isinstance(error, MemoryError):
        _complain(f"{about}there is not enough memory for this model")
        return INTERNAL
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        _drop_stdout()
        place = f"{error.filename}" if error.filename else "the output"
        _complain(f"{about}{place} cannot be written: {error.strerror}")
        return UsageError.exit_code
    if verbose:
        traceback.print_exception(error)
    _complain(f"{about}{type(error).__name__}: {error} (a bug; -v shows where)")
    return INTERNAL


def _hold_streams() -> None:
    """Lead streams that are closed nowhere.

    The next file that is opened would get their number, and what libraries write to stderr.
    """
    while (handle := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(handle)
    if sys.stderr is None:
        sys.stderr = os.fdopen(_STDERR, "w", encoding="utf-8")


def _drop_stdout() -> None:
    """What stdout did not take is not tried again at the end."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(sentence: str) -> None:
    """One line on stderr; what a file or an option says in it may be of any length."""
    line = " ".join(sentence.split())
    shown = line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …"
    with suppress(OSError):  # the exit code is left to tell
        sys.stderr.write(plain(shown) + "\n")


# ---- commands --------------------------------------------------------------------------


def _optimize(args: argparse.Namespace) -> int:
    """Every model in turn; one that fails does not keep the others from being optimized."""
    options, folder = options_of(args), wants_folder(args)
    if options.until is not None:
        return _show_stages(args, options, options.until)
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
            codes.append(_failed(error, args.verbose, model))
            continue
        reports.append(outcome.report)
        if not args.json:
            _console(quiet=args.quiet).print(render_report(reports[-1], args.verbose))
        if args.explain and not (args.json or args.quiet):
            _explain(outcome.source, options, reports[-1])
    _finish(reports, args)
    return codes[0] if codes else 0


def _sweep(args: argparse.Namespace) -> int:
    """The options are those of one optimization; each budget takes its place in them."""
    largest = argparse.Namespace(**{**vars(args), "max_error": args.max_error[-1]})
    return run_sweep(args, options_of(largest), _console(quiet=args.quiet))


def _outcomes(options: Options, folder: bool, args: argparse.Namespace) -> Iterator[api.Outcome]:
    """Every model's outcome; the step under way is shown while there is none to print."""
    progress = _console(stderr=True, quiet=args.quiet or args.json)
    status = progress.status(f"reading {escape(plain(args.models[0].name))}")

    def hear(step: str) -> None:
        status.update(escape(plain(step)))

    outcomes = api.optimize_many(args.models, options, hear, folder=folder)
    while True:
        with status:
            outcome = next(outcomes, None)
        if outcome is None:
            return
        yield outcome


def _explain(source: Path, options: Options, report: Report) -> None:
    """What ``tracea explain`` says, with the gains of this run."""
    target = target_of(options.target, options.precision) if options.keep == "faster" else None
    told = explain(source, options, result=Path(report.files[-1]), measured_for=target)
    _console().print(render_explanation(told))


def _finish(reports: Sequence[Report], args: argparse.Namespace) -> None:
    """What is told about all models together: the page and the JSON."""
    if args.report is not None and reports:
        write_text(args.report, report_page(*reports))
    if args.json and len(args.models) == 1:
        sys.stdout.write("".join(report.to_json() for report in reports))
    elif args.json:
        sys.stdout.write("[\n" + ",\n".join(report.to_json() for report in reports) + "]\n")


def _show_stages(args: argparse.Namespace, options: Options, until: str) -> int:
    shown = []
    for model in args.models:
        made = api.stages(model, until, options)
        for warning, fault in made.trace.faults().items():
            _complain(f"warning: {warning}")
            sys.stderr.write(fault if args.verbose else "")
        if args.json:
            shown.append(made.to_dict())
            continue
        _console(quiet=args.quiet).print(render_stages(made.graph, made.programs, made.sources))
        if args.verbose and until != "import":
            _console(quiet=args.quiet).print(render_rules(rule_rows(made.trace)))
    if args.json:
        json.dump(shown if len(args.models) > 1 else shown[0], sys.stdout, indent=1)
        sys.stdout.write("\n")
    return 0


class _Console(Console):
    """Leaves a broken pipe to :func:`_guarded`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

    def print(self, *objects: Any, **settings: Any) -> None:
        """For a file or a program lines end where their text does."""
        if self.is_terminal or self.quiet:
            super().print(*objects, **settings)
            return
        with self.capture() as capture:
            super().print(*objects, **settings)
        self.file.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


def _console(stderr: bool = False, quiet: bool = False) -> Console:
    """Lines fit a terminal, however narrow, and are never wrapped for a file or a program."""
    console = _Console(stderr=stderr, quiet=quiet, highlight=False)
    narrow = console.is_terminal and max(console.width, _NARROWEST)
    console.width = narrow or _UNLIMITED
    return console
