"""What an option is: one record, from which follow its flags, its key in a file for ``--config``,
the check of a value given in Python, and its row in the reference.

An option of :class:`~tracea_graph.options.Options` stands in its field's metadata, see
:func:`option`: the field has its keyword, its type and its default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracea_graph.errors import UsageError

__all__ = ["Option", "Use", "declared", "option"]

_AS_EVERYWHERE: Any = object()


@dataclass(frozen=True)
class Use:
    """How a command takes an option that is ``tracea-optimize``'s too, where it differs."""

    help: str = ""
    default: Any = _AS_EVERYWHERE
    group: str = ""
    metavar: str = ""
    required: bool = False


@dataclass(frozen=True)
class Option:
    """One option.

    ``name`` is that of its flag, without dashes, ``short`` the letter of another one.  ``parse``
    says what a word means: it raises what argparse or the command line understands; ``made`` is
    the field's value of what was parsed, where that is another.  A value
    must be one of ``choices``, if there are any; ``values`` are words a value may be, of which
    whoever uses it knows more.  ``many`` flags add up to a tuple; a file may ``join`` a list to
    one word; a ``flag`` has no word: it turns the default over, and a ``counted`` one counts.
    ``help`` is a sentence for ``--help``, ``more`` what the reference says instead.  ``must`` is
    the test of a value and what it must be.  ``also`` are commands that take it beside
    ``tracea-optimize``.

    ``place`` options change where things go, not what they are; a lock keeps ``locked`` ones; a
    file cannot have one that is not ``in_file``.  ``was`` are earlier names, for a hint.
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

    def check(self, value: Any) -> None:
        """Raises UsageError for a value that makes no sense."""
        if value is None and self.default is None:
            return
        if self.choices and value not in self.choices:
            raise UsageError(f"--{self.name} must be {' or '.join(self.choices)}, not {value!r}")
        if self.must and not self.must[0](value):
            raise UsageError(f"--{self.name} must {self.must[1]}, not {value:g}")

    def value(self, parsed: Any) -> Any:
        """What a field has of what its flags, or none, gave."""
        if self.many:
            return tuple(parsed)
        return self.made(parsed) if self.made and parsed is not None else parsed

    def sentence(self, command: str) -> str:
        """What ``--help`` of a command says of it."""
        use = self.also.get(command)
        return (use and use.help) or self.help or _listed(self.values())

    def flags(self) -> tuple[str, ...]:
        return (*([f"-{self.short}"] if self.short else []), f"--{self.name}")

    def add(self, add: Callable[..., Any], keyword: str, command: str) -> None:
        """Add its flag to a command by a parser's or group's ``add_argument``; the parsed value
        goes by its ``keyword``."""
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
        elif metavar := use.metavar or self.metavar:
            given["metavar"] = metavar
        add(*self.flags(), type=self.parse, **given)

    def row(self, keyword: str) -> str:
        """Its row in a table of Markdown: the flag, what it means, and its keyword in Python."""
        words = " ".join(filter(None, (self.flags()[-1], self._operand())))
        shown = [*(f"`{flag}`" for flag in self.flags()[:-1]), f"`{_escaped(words)}`"]
        python = f"`{keyword}`" if keyword else ""
        return f"| {', '.join(shown)} | {_escaped(self.more or self.help)} | {python} |"

    def _operand(self) -> str:
        words = self.choices or self.values()
        return "|".join(words) if words else self.metavar


def option(default: Any, **record: Any) -> Any:
    """A field of a dataclass that is an option, see :class:`Option`; ``name`` is the field's
    where none is given."""
    return field(default=default, metadata={"option": {"default": default, **record}})


def declared(options: type) -> dict[str, Option]:
    """The options of a dataclass, by keyword."""
    return {
        found.name: Option(**{"name": found.name.replace("_", "-"), **found.metadata["option"]})
        for found in dataclasses.fields(options)
    }


def _listed(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _escaped(text: str) -> str:
    return text.replace("|", r"\|")
