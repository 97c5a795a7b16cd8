"""Option records: each defines flag, config key, validation, and row of the reference.

An option of :class:`~tracea_graph.options.Options` is stored in the metadata of its field, see
:func:`option`; the field gives keyword, type and default.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracea_graph.errors import UsageError

__all__ = ["Option", "Use", "option", "options_by_keyword"]

_AS_EVERYWHERE: Any = object()


@dataclass(frozen=True)
class Use:
    """How a command other than ``tracea-optimize`` defines an option differently.

    Empty fields mean that the definition is the one in :class:`Option`.
    """

    help: str = ""
    default: Any = _AS_EVERYWHERE
    group: str = ""
    metavar: str = ""
    required: bool = False


@dataclass(frozen=True)
class Option:
    """Definition of one option.

    * ``name``, ``short``: the long flag without dashes, and the letter of the short flag.
    * ``parse``: converts a word; its exceptions are reported by argparse or the command line.
    * ``made``: converts the parsed value to the value of the dataclass field.
    * ``choices``: the only values allowed.
    * ``values``: returns words to list in the help; the code that reads the option validates them.
    * ``must``: a predicate that values must satisfy, and its description.
    * ``many``: the flag may be repeated; its values become a tuple.
    * ``flag``: the flag takes no value and negates the default.
    * ``counted``: the value is how often the flag is given.
    * ``help``, ``more``: text for ``--help``, and the text that replaces it in the reference.
    * ``also``: further commands that take the option.
    * ``was``: earlier names, for suggestions.
    * ``in_file``: the option may be set in a config file.
    * ``join``: separator with which a list in a config file is joined to one word.
    * ``place``: the option says where output goes and does not affect results.
    * ``locked``: the option is stored in a plan lock.
    """

    name: str
    default: Any
    help: str = ""
    more: str = ""
    group: str = ""
    metavar: str = ""
    short: str = ""
    parse: Callable[[str], Any] | None = None
    made: Callable[[Any], Any] | None = None
    choices: Sequence[str] = ()
    values: Callable[[], Sequence[str]] = tuple
    many: bool = False
    join: str = ""
    flag: bool = False
    counted: bool = False
    must: tuple[Callable[[Any], bool], str] | None = None
    also: Mapping[str, Use] = field(default_factory=dict)
    place: bool = False
    locked: bool = False
    in_file: bool = True
    was: tuple[str, ...] = ()

    def read(self, value: Any) -> Any:
        """Convert a value that was given in Python: parse a string as the command line does.

        Other values are returned unchanged.  Raises UsageError for a string that cannot be parsed.
        """
        if not isinstance(value, str) or not (self.parse or self.made or self.many):
            return value
        try:
            parsed = self.parse(value) if self.parse else value
        except (argparse.ArgumentTypeError, ValueError) as error:
            raise UsageError(f"--{self.name}: {error}") from error
        return self.value([parsed] if self.many else parsed)

    def check(self, value: Any) -> None:
        """Raise UsageError for an invalid value."""
        if value is None and self.default is None:
            return
        if self.choices and value not in self.choices:
            raise UsageError(f"--{self.name} must be {' or '.join(self.choices)}, not {value!r}")
        if self.must and not self.must[0](value):
            raise UsageError(f"--{self.name} must {self.must[1]}, not {value:g}")

    def value(self, parsed: Any) -> Any:
        """Convert what ``parse`` returned to the value of the dataclass field."""
        if self.many:
            return tuple(parsed)
        return self.made(parsed) if self.made and parsed is not None else parsed

    def sentence(self, command: str) -> str:
        """Return the help text of the option for a command."""
        use = self.also.get(command)
        return (use and use.help) or self.help or _listed(self.values())

    def flags(self) -> tuple[str, ...]:
        return (*([f"-{self.short}"] if self.short else []), f"--{self.name}")

    def add(self, add: Callable[..., Any], keyword: str, command: str) -> None:
        """Add the flag through ``add_argument`` of a parser or group; its dest is ``keyword``."""
        given: dict[str, Any] = {"dest": keyword, "help": self.sentence(command)}
        if self.counted:
            add(*self.flags(), action="count", default=0, **given)
            return
        if self.flag:
            add(*self.flags(), action=f"store_{str(not self.default).lower()}", **given)
            return
        use = self.also.get(command, Use())
        default = self.default if use.default is _AS_EVERYWHERE else use.default
        if self.many:
            given |= {"action": "append", "default": []}
        else:
            given |= {"default": default, "required": use.required}
        if self.choices:
            given["choices"] = self.choices
        if metavar := use.metavar or self.metavar:
            given["metavar"] = metavar
        add(*self.flags(), type=self.parse, **given)

    def row(self, keyword: str) -> str:
        """Return a row of the Markdown reference: flag, meaning, and keyword in Python."""
        words = " ".join(filter(None, (self.flags()[-1], self._operand())))
        shown = [*(f"`{flag}`" for flag in self.flags()[:-1]), f"`{_escaped(words)}`"]
        python = f"`{keyword}`" if keyword else ""
        return f"| {', '.join(shown)} | {_escaped(self.more or self.help)} | {python} |"

    def _operand(self) -> str:
        words = self.choices or self.values()
        return "|".join(words) if words else self.metavar


def option(default: Any, **record: Any) -> Any:
    """Declare a dataclass field that is an option, see :class:`Option`.

    The name defaults to that of the field.
    """
    return field(default=default, metadata={"option": {"default": default, **record}})


def options_by_keyword(options: type) -> dict[str, Option]:
    """Return the options of a dataclass by keyword."""
    return {
        found.name: Option(**{"name": found.name.replace("_", "-"), **found.metadata["option"]})
        for found in dataclasses.fields(options)
    }


def _listed(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _escaped(text: str) -> str:
    return text.replace("|", r"\|")
