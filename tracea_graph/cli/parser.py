"""Parser base class of every command: help in 80 columns, and errors in one sentence."""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from tracea_graph.errors import UsageError, did_you_mean
from tracea_graph.options import OPTIONS
from tracea_graph.version import VERSION, versions

__all__ = ["RENAMED", "Parser"]

RENAMED: Mapping[str, str] = MappingProxyType(
    {f"--{old}": f"--{one.name}" for one in OPTIONS.values() for old in one.was}
    | {"--peers": "--baselines", "--settle": "--retune"}
)
"""Renamed flags: earlier name to current name."""

_WIDEST = 80


class Parser(argparse.ArgumentParser):
    """Parser that reports errors in one sentence, without the usage.

    ``examples`` are command lines shown at the end of the help.  Options cannot be abbreviated,
    here or in files for ``--config``: an abbreviation may become ambiguous when options are added.
    """

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        given = {"allow_abbrev": False, "add_help": False, "formatter_class": _formatter, **kwargs}
        super().__init__(*args, **given)
        self.examples = tuple(examples)

    def add_general(self) -> None:
        """Add ``--help`` and, at top level, ``--version``, in the last group of the help."""
        group = self.add_argument_group("other")
        group.add_argument("-h", "--help", action="help", help="show this help and exit")
        if " " not in self.prog:
            group.add_argument(
                "--version", action=_Version, nargs=0, help="show versions and exit"
            )
            group.add_argument(
                "--print-completion", action=_Completion, choices=("bash", "zsh", "tcsh"),
                help="print the script for word completion in this shell",
            )  # fmt: skip

    def format_help(self) -> str:
        """Return argparse's help followed by the examples."""
        shown = "".join(f"  {line}\n" for line in self.examples)
        return super().format_help() + (f"\nexamples:\n{shown}" if shown else "")

    def error(self, message: str) -> NoReturn:
        """Raise UsageError with the message in plainer words."""
        unknown = next((w for w in message.split() if w.startswith("--")), "")
        if message.startswith("unrecognized") and unknown:
            raise UsageError(f"there is no option {unknown}{self._near(unknown)}")
        raise UsageError(_plainer(message) or f"{message}{self._listing()}")

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        """Parse arguments; raise UsageError for words that a subcommand does not know.

        Each subcommand reports its own unknown words, because it can suggest similar flags.
        """
        found, rest = super().parse_known_args(*args, **kwargs)
        if rest and " " in self.prog:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest

    def _near(self, unknown: str) -> str:
        """Return the end of an error message: a similar flag, by its current name."""
        flags = self._option_string_actions
        renamed = {old: new for old, new in RENAMED.items() if new in flags}
        return did_you_mean(unknown.partition("=")[0], flags, renamed) or self._listing()

    def _listing(self) -> str:
        return f"; {self.prog} --help lists all options"


def _plainer(message: str) -> str:
    """Return a plainer sentence about a mistyped value; empty for other messages of argparse."""
    if match := re.match(r"argument (.+?): invalid (float|int) value: (.*)", message):
        flag, kind, value = match.groups()
        return f"{flag} takes a {'whole ' * (kind == 'int')}number, not {value}"
    if match := re.match(r"argument (.+?): invalid choice: '(.*)' \(choose from (.*)\)", message):
        flag, value, known = match.groups()
        near = did_you_mean(value, re.findall(r"[\w.-]+", known))
        if flag == "COMMAND":
            return f"there is no command {value!r}{near or f'; there are {known}'}"
        if near:
            return f"{flag}: invalid choice: {value!r}{near}"
    return ""


def _formatter(prog: str) -> argparse.HelpFormatter:
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    return argparse.HelpFormatter(prog, max_help_position=26, width=width)


class _Version(argparse.Action):
    """Action that prints versions and exits; they are looked up on demand because that is slow."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any,
        option_string: str | None = None,
    ) -> None:  # fmt: skip
        print(f"{parser.prog} {VERSION}, onnxruntime {versions()['onnxruntime']}")
        parser.exit()


class _Completion(argparse.Action):
    """Action that prints the shell completion script and exits."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any,
        option_string: str | None = None,
    ) -> None:  # fmt: skip
        import shtab

        print(shtab.complete(parser, shell=values))
        parser.exit()
