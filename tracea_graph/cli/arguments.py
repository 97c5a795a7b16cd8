"""The command line: what is accepted, and how it becomes Options."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from tracea_graph.cli.bench import add_bench
from tracea_graph.cli.cache import add_cache
from tracea_graph.cli.doctor import add_doctor
from tracea_graph.cli.flags import OPTIMIZE, add_flags, made_options
from tracea_graph.cli.inspect import add_explain, add_inspect
from tracea_graph.cli.sweep import add_sweep
from tracea_graph.cli.tune import add_tune
from tracea_graph.cli.verify import add_strip, add_verify
from tracea_graph.errors import UsageError, close_match
from tracea_graph.options import OPTIONS, Options
from tracea_graph.version import VERSION, versions

__all__ = ["optimize_parser", "options_of", "tool_parser", "wants_folder"]


RENAMED: Mapping[str, str] = MappingProxyType(
    {f"--{old}": f"--{one.name}" for one in OPTIONS.values() for old in one.was}
    | {"--settle": "--retune", "--baselines": "--baselines"}
)
"""Flags of earlier versions, and what they are called now."""


class _Completion(argparse.Action):
    """Prints what a shell needs to complete the command's words, and leaves."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any,
        option_string: str | None = None,
    ) -> None:  # fmt: skip
        import shtab

        print(shtab.complete(parser, shell=values))
        parser.exit()


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence; the usage is a ``--help`` away.

    Names stand in full, here and in files for ``--config``: what is an abbreviation today may
    mean two options tomorrow.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})
        if " " not in self.prog:  # what is asked of the whole command
            said = f"%(prog)s {VERSION}, onnxruntime {versions()['onnxruntime']}"
            self.add_argument("--version", action="version", version=said)
            self.add_argument(
                "--print-completion", action=_Completion, choices=("bash", "zsh", "tcsh"),
                help="print the script that completes words in a shell",
            )  # fmt: skip

    def error(self, message: str) -> NoReturn:
        unknown = next((w for w in message.split() if w.startswith("--")), "")
        if message.startswith("unrecognized") and unknown:
            raise UsageError(f"there is no option {unknown}{self._near(unknown)}")
        raise UsageError(f"{message}{self._listing()}")

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        """A subcommand says itself which words it does not know: it alone knows what is near."""
        found, rest = super().parse_known_args(*args, **kwargs)
        if rest and " " in self.prog:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest

    def _near(self, unknown: str) -> str:
        """The end of a sentence: the flag that may be meant, by its current name."""
        flags = self._option_string_actions
        renamed = {old: new for old, new in RENAMED.items() if new in flags}
        return close_match(unknown.partition("=")[0], flags, renamed) or self._listing()

    def _listing(self) -> str:
        return f"; {self.prog} --help lists all options"


def optimize_parser(prog: str = "tracea-optimize") -> argparse.ArgumentParser:
    """The parser of ``tracea-optimize``.  It raises UsageError for arguments it does not know."""
    parser = _Parser(
        prog=prog,
        description="Write a faster model that computes the same function in plain onnxruntime. "
        "A rewrite stays only if it was measured faster and within tolerance.",
        epilog="exit codes: 0 written (improved, or original kept), 2 usage or invalid model, "
        "3 verification failed, 4 build failed, 130, 129, 143 interrupted",
    )
    _add_optimize(parser)
    return parser


def _add_optimize(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    add_flags(parser, OPTIMIZE)


def tool_parser() -> argparse.ArgumentParser:
    """The parser of ``tracea``: one subcommand each."""
    parser = _Parser(prog="tracea", description="Optimize and inspect ONNX models.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    optimize = commands.add_parser("optimize", help="write a faster model")
    _add_optimize(optimize)
    sweep = commands.add_parser(
        "sweep", conflict_handler="resolve", help="one result per accepted error",
        description="Optimize once per --max-error with smaller matrices; show what each buys.",
    )  # fmt: skip
    _add_optimize(sweep)
    add_sweep(sweep)
    add_inspect(commands)
    add_explain(commands)
    add_bench(commands)
    add_verify(commands)
    add_strip(commands)
    add_doctor(commands)
    add_tune(commands)
    add_cache(commands)
    return parser


def wants_folder(args: argparse.Namespace) -> bool:
    """True if ``-o`` can only be a folder: it ends like one, or serves several models."""
    named = args.output is not None and args.output.endswith(os.sep)
    return bool(named or len(args.models) > 1)


def options_of(args: argparse.Namespace) -> Options:
    """Options from parsed arguments.  Raises UsageError for values that make no sense."""
    if len(args.models) > 1 and (args.lock or args.save_lock):
        raise UsageError("--lock and --save-lock are about one model")
    return made_options(args)
