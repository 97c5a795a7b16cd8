"""Entry points ``tracea-optimize`` and ``tracea``: parse, load the command's module, run it."""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from types import MappingProxyType
from typing import Any

from tracea_graph.cli.arguments import join_subcommands, optimize_parser, tool_parser
from tracea_graph.cli.config_file import insert_config_options
from tracea_graph.cli.error_messages import discard_stdout, print_error, report_failure
from tracea_graph.cli.termination_signals import interrupt_exit_code, interrupt_on_signals

__all__ = ["main", "optimize_main"]

_STDERR = 2
_LOGGED = 2
"""Number of ``-v`` flags from which the log is shown on stderr."""
_RUN: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "optimize": ("optimize", "run_optimize"),
        "sweep": ("sweep", "run_sweep"),
        "inspect": ("inspect", "run_inspect"),
        "explain": ("inspect", "run_explain"),
        "bench": ("bench", "run_bench"),
        "verify": ("verify", "run_verify"),
        "strip": ("verify", "run_strip"),
        "doctor": ("doctor", "run_doctor"),
        "tune": ("tune", "run_tune"),
        "tune worker": ("tune", "run_worker"),
        "tune report": ("tune", "run_tune_report"),
        "cache": ("cache", "run_cache"),
        "kernels": ("kernels", "run_kernels"),
        "metrics": ("metrics", "run_metrics"),
        "repro": ("repro", "run_repro"),
    }
)
"""Module of this package and function of each command; loaded on demand."""


def optimize_main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``tracea-optimize``; returns the exit code."""
    return _guarded(optimize_parser, argv, "optimize")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``tracea``; returns the exit code."""
    return _guarded(tool_parser, argv)


def _run(command: str, args: argparse.Namespace) -> int:
    from tracea_graph.check.custom_op_libraries import use_custom_op_libraries
    from tracea_graph.cli.console import make_console
    from tracea_graph.target import read_environment

    read_environment()  # reports invalid environment variables, whatever the command
    module, function = _RUN[command]
    run = getattr(import_module(f"tracea_graph.cli.{module}"), function)
    with use_custom_op_libraries(getattr(args, "custom_ops_libraries", ())):
        return int(run(args, make_console()))


def _guarded(
    parser: Callable[[], argparse.ArgumentParser],
    argv: Sequence[str] | None,
    command: str = "",
) -> int:
    """Run a command; report any failure as one line on stderr and an exit code."""
    _hold_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a file name may not be encodable in this locale
    verbose, before = 0, warnings.formatwarning
    warnings.formatwarning = _as_sentence
    try:
        words = join_subcommands(sys.argv[1:] if argv is None else argv)
        args = parser().parse_args(insert_config_options(words))
        args.words = words
        verbose = getattr(args, "verbose", 0)
        if verbose >= _LOGGED:
            logging.basicConfig(level=logging.DEBUG, format="%(name)s: %(message)s")
        with interrupt_on_signals():
            code = _run(command or getattr(args, "command", ""), args)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of the output has exited
        discard_stdout()
        return 0
    except KeyboardInterrupt as error:
        by = f" by {error}" if str(error) else ""
        with suppress(OSError):  # the terminal may be closed
            print_error(
                f"interrupted{by}: no half-written file is left; "
                "what was compiled or measured is kept"
            )
        return interrupt_exit_code(error)
    except Exception as error:  # last resort: no traceback unless requested
        return report_failure(error, verbose)
    finally:
        warnings.formatwarning = before


def _as_sentence(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> str:
    """A warning to users as one line like any other, without the source that issues it."""
    if category is not UserWarning:
        return _with_its_source(message, category, *where, **more)
    return f"warning: {' '.join(str(message).split())}\n"


_with_its_source = warnings.formatwarning


def _hold_streams() -> None:
    """Open closed standard streams on the null device.

    Otherwise the next opened file would get such a stream's descriptor, and receive what libraries
    write to stderr.
    """
    while (handle := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(handle)
    if sys.stderr is None:
        sys.stderr = os.fdopen(_STDERR, "w", encoding="utf-8")
