"""Tables that fit a terminal: text wraps at words and path separators, spare columns are dropped.

In files and pipes, where lines may be of any length, tables are laid out for the console's
``table_width``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

__all__ = [
    "Column",
    "FittedTable",
    "format_bytes",
    "format_three_digits",
    "new_table",
    "plain_text",
    "text_cell",
]

_GAP = 3
"""Characters between two columns."""
_FOLDED, _LONGEST_WORD, _NARROWEST = 20, 24, 8
"""Widths of a column that wraps: its minimum while other columns can be dropped, the longest word
that is kept whole, and its minimum after that.
"""
_LONGEST = 2000  # characters of a cell
_FIGURE = r"\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?"
_UNIT = (
    r"(?:%|×|[GMk]?B(?:/s)?|[GMT]?FLOP(?:/s|/byte)?|[GMk]iB|bytes|[GM]Hz|[mnuµ]?s|min)(?![\w/])"
)
_WHOLE = re.compile(
    r"(?<![\w.])(?<!\w-)(?:"
    rf"[-+±]?{_FIGURE}(?:(?:×?[-:/–]|×|\s×\s){_FIGURE})*(?:\s?{_UNIT})?"  # 1.46–1.69×, 14.6 kB
    r"|--?[A-Za-z][\w-]*)"  # --max-error
)
"""Text that is not broken: a number with its unit, a range, sizes, the name of an option."""
_PIECES = re.compile(
    rf"(?:(?!{_WHOLE.pattern})[^\s/,;:_.\-])*(?:{_WHOLE.pattern})?[^\s/,;:_.\-]*[/,;:_.\-]*\s*"
)
"""Parts of a text between which a line may end."""


def plain_text(text: str) -> str:
    """Replace control characters, since a terminal would obey escape sequences in names."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def text_cell(text: str, style: str = "") -> Text:
    """Return text that is not parsed as markup."""
    return Text(plain_text(text), style)


def format_three_digits(number: float) -> str:
    """Format with three significant digits, without exponent: ``0.0123``, ``4.57``, ``2560``."""
    return f"{number:.3g}" if abs(number) < 999.5 else f"{number:.0f}"


def format_bytes(size: float) -> str:
    """Format bytes with three digits and a unit."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} B"


@dataclass(frozen=True)
class Column:
    """A column of a :class:`FittedTable`.

    If the table is too wide, cells of columns that ``fold`` are wrapped, and columns with a
    positive ``spare`` are dropped, the largest ``spare`` first.
    """

    name: str
    justify: Literal["left", "right"] = "left"
    folds: bool = False
    spare: int = 0


@dataclass
class FittedTable:
    """A table that fits its console's width; cells are plain text, never markup."""

    title: str
    columns: list[Column] = field(default_factory=list)
    rows: list[tuple[Text, ...]] = field(default_factory=list)
    sections: set[int] = field(default_factory=set)
    headed: bool = True

    def __post_init__(self) -> None:
        self.columns = list(self.columns)

    def add_column(
        self, name: str, justify: Literal["left", "right"] = "left", folds: bool = False,
        spare: int = 0,
    ) -> None:  # fmt: skip
        """Add a column; see :class:`Column`."""
        self.columns.append(Column(name, justify, folds, spare))

    def add_row(self, *cells: Text | str) -> None:
        """Add a row whose first cells are given; the others stay empty.

        Very long text is cut, because names may have millions of characters.
        """
        given = [_cut(one if isinstance(one, Text) else text_cell(one)) for one in cells]
        self.rows.append((*given, *[Text()] * (len(self.columns) - len(given))))

    def add_section(self) -> None:
        """Begin a section: a line separates it from the rows so far."""
        self.sections.add(len(self.rows))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        width = min(options.max_width, getattr(console, "table_width", options.max_width))
        kept, widths = self._layout(width)
        if sum(widths.values()) + _GAP * (len(kept) - 1) > width:
            yield self._records(kept, width)
            return
        table = _styled(self.title, self.headed)
        for i in kept:
            one = self.columns[i]
            table.add_column(
                _wrapped(Text(one.name), widths[i]), justify=one.justify, no_wrap=True
            )
        for number, row in enumerate(self.rows):
            if number and number in self.sections:
                table.add_section()
            table.add_row(*(_wrapped(row[i], widths[i]) for i in kept))
        yield table

    def _records(self, kept: Sequence[int], width: int) -> Table:
        """Return each row as a block of lines, one per column, if the table does not fit."""
        heads = max(cell_len(self.columns[i].name) for i in kept)
        table = _styled(self.title, headed=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        for row in self.rows:
            table.add_section()
            for i in kept:
                table.add_row(self.columns[i].name, _wrapped(row[i], width - heads - _GAP))
        return table

    def _layout(self, width: int) -> tuple[list[int], dict[int, int]]:
        """Return the columns that fit the width, and the width of each."""
        kept = list(range(len(self.columns)))
        least = {i: max(self._least(i, _LONGEST_WORD), self._folded(i)) for i in kept}
        while sum(least[i] for i in kept) + _GAP * (len(kept) - 1) > width:
            last = max(kept, key=lambda i: (self.columns[i].spare, i), default=-1)
            if last < 0 or not self.columns[last].spare:
                break
            kept.remove(last)
        space = width - _GAP * (len(kept) - 1)
        for word in (_LONGEST_WORD, _NARROWEST):
            if sum(least[i] for i in kept) > space:
                least = {i: self._least(i, word) for i in kept}
        return kept, self._shared(kept, least, space)

    def _shared(self, kept: Sequence[int], least: dict[int, int], space: int) -> dict[int, int]:
        """Distribute what the least widths leave, evenly, to the columns that could use it."""
        widths = {i: least[i] for i in kept}
        wanted = {i: self._natural(i) for i in kept}
        left = space - sum(widths.values())
        while left > 0 and (short := [i for i in kept if widths[i] < wanted[i]]):
            for i in short[:left]:
                more = min(max(1, left // len(short)), wanted[i] - widths[i], left)
                widths[i] += more
                left -= more
        return widths

    def _texts(self, column: int) -> Iterator[str]:
        yield from (row[column].plain for row in self.rows)

    def _natural(self, column: int) -> int:
        """Width of a column in which nothing wraps."""
        texts = [self.columns[column].name if self.headed else "", *self._texts(column)]
        return max(map(cell_len, texts))

    def _folded(self, column: int) -> int:
        return min(_FOLDED, self._natural(column)) if self.columns[column].folds else 0

    def _least(self, column: int, word: int) -> int:
        """Least width of a column: of whole cells, or of parts of up to ``word`` characters."""
        one = self.columns[column]
        head = max(map(cell_len, one.name.split()), default=0) if self.headed else 0
        if not one.folds:
            return max([head, *map(cell_len, self._texts(column))])
        texts = list(self._texts(column))
        parts = (cell_len(p.rstrip()) for t in texts for p in _PIECES.findall(t))
        whole = (cell_len(p) for t in texts for p in _WHOLE.findall(t))
        return max(head, min(word, max(parts, default=0)), *whole)


def _styled(title: str, headed: bool) -> Table:
    return Table(
        title=text_cell(title) if title else None,
        title_justify="left",
        title_style="italic",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        show_header=headed,
    )


def _cut(text: Text) -> Text:
    """Text of at most ``_LONGEST`` characters, with an ellipsis for the rest."""
    if len(text.plain) <= _LONGEST:
        return text
    return Text(text.plain[: _LONGEST - 1] + "…", style=text.style)


def _wrapped(text: Text, width: int) -> Text:
    """Text in lines of at most ``width`` characters."""
    if cell_len(text.plain) <= width:
        return text
    lines, line = list[str](), ""
    for piece in _PIECES.findall(text.plain):
        if cell_len((line + piece).rstrip()) > width and line:
            lines.append(line.rstrip())
            line = ""
        line += piece
        while cell_len(line.rstrip()) > width and (cut := _place_to_cut(line, width)):
            lines.append(line[:cut].rstrip())
            line = line[cut:].lstrip()
    return Text("\n".join([*lines, line.rstrip()] if line.strip() else lines), style=text.style)


def _place_to_cut(word: str, width: int) -> int:
    """Return how many characters of a long word fit the width; 0 if only a number is left."""
    parts = [match.span() for match in _WHOLE.finditer(word)]
    free = [i for i in range(1, len(word)) if not any(a < i < b for a, b in parts)]
    return next((i for i in reversed(free) if cell_len(word[:i]) <= width), min(free, default=0))


def new_table(title: str) -> FittedTable:
    """Return an empty table in the style of all views."""
    return FittedTable(title)
