"""Write the generated sections of the documentation: ``python -m docs.generate``.

A section stands between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``. The command-line
reference comes from the option records and the parsers, the picture of the pipeline from
``api.STAGES``, JSON Schemas from the records of documents, the table of kernel calls from their
records, the folders from their docstrings. ``tests/test_docs.py`` fails while a section differs
from what this module makes of the code.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from tracea_graph import api
from tracea_graph.cli.arguments import optimize_parser, tool_parser
from tracea_graph.cli.parser import Parser
from tracea_graph.json_schemas import DOCUMENTS, document_schema
from tracea_graph.kernels.cpu.call_table_markdown import call_table
from tracea_graph.kernels.gpu.calls import CALLS as GPU_CALLS
from tracea_graph.options import ALONE, OPTIONS
from tracea_graph.target import Backend

__all__ = ["SECTIONS", "main", "schema_text", "updated"]

ROOT = Path(__file__).resolve().parents[1]


def option_tables() -> str:
    """The options of ``tracea-optimize``: a table for each group of the option records."""
    rows: dict[str, list[str]] = {}
    for keyword, one in OPTIONS.items():
        rows.setdefault(one.group, []).append(one.row(keyword))
    for one in ALONE.values():
        rows.setdefault(one.group, []).append(one.row(""))
    head = "| option | meaning | in Python |\n|---|---|---|\n"
    return "\n".join(
        f"### {(group or 'output').capitalize()}\n\n{head}" + "\n".join(lines) + "\n"
        for group, lines in rows.items()
    )


def command_tables() -> str:
    """Every subcommand of ``tracea``: what it does and the flags it takes."""
    return "\n".join(_command(parser) for parser in _commands(tool_parser()))


def _commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers of all subcommands that take arguments themselves."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                below = list(_commands(one))
                yield from below or [one]


def _command(parser: argparse.ArgumentParser) -> str:
    usual = {a.dest: a.help for a in optimize_parser()._actions}
    actions = [a for a in parser._actions if not isinstance(a, argparse._HelpAction)]
    everything = usual.keys() - {"version", "print_completion"} <= {
        a.dest for a in parser._actions
    }
    if everything:  # only what differs from tracea-optimize
        actions = [a for a in actions if usual.get(a.dest) != a.help]
    text = parser.description or "Does what `tracea-optimize` does."
    lines = [f"### {parser.prog}", "", _sentence(text), ""]
    if everything:
        lines += ["Takes all options of `tracea-optimize`.", ""]
    if actions:
        lines += ["| argument | meaning |", "|---|---|", *map(_row, actions), ""]
    if parser.epilog:
        lines += [_sentence(parser.epilog), ""]
    if isinstance(parser, Parser) and not everything:
        lines += [*(f"    {line}" for line in parser.examples), ""]
    return "\n".join(lines)


def _sentence(text: str) -> str:
    text = " ".join(text.split()).rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."


def _row(action: argparse.Action) -> str:
    operand = ""
    if action.nargs != 0:
        words = "|".join(map(str, action.choices or ()))
        operand = str(action.metavar or words or action.dest.upper())
        operand += " …" if action.nargs == "+" else ""
    *others, flag = action.option_strings or [""]
    names = [*others, " ".join(filter(None, (flag, operand)))]
    shown = ", ".join(f"`{name}`" for name in names)
    return f"| {_escaped(shown)} | {_escaped(action.help or '')} |"


def _escaped(text: str) -> str:
    return text.replace("|", r"\|").replace("``", "`")


def stage_picture() -> str:
    """The stages of ``api.optimize`` as a Mermaid flow chart, each with what it does."""
    lines = ["```mermaid", "flowchart TD"]
    names = [stage.__name__ for stage in api.STAGES]
    for stage in api.STAGES:
        said = (stage.__doc__ or "").split("\n\n")[0].split(". ")[0].strip().rstrip(".")
        said = " ".join(said.split()).replace('"', "'").replace("``", "")
        lines.append(f'    {stage.__name__}["<b>{stage.__name__}</b><br/>{said}"]')
    lines += [f"    {a} --> {b}" for a, b in pairwise(names)]
    return "\n".join([*lines, "```", ""])


def folder_table() -> str:
    """Every package with the first sentence of its docstring."""
    lines = ["| folder | what it holds |", "|---|---|"]
    for home in ("tracea_graph", "passes", "kernels"):
        for path in sorted((ROOT / home).rglob("__init__.py")):
            folder = path.parent.relative_to(ROOT).as_posix()
            if not folder.startswith(("tracea_graph/kernels", "tracea_graph/passes")):  # links
                said = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split("\n\n")[
                    0
                ]
                lines.append(
                    f"| [`{folder}/`](../{folder}) | {_escaped(' '.join(said.split()))} |"
                )
    return "\n".join([*lines, ""])


def backend_protocol() -> str:
    """What the pipeline asks of a backend: each member of the protocol with its docstring."""
    lines = ["| member | what it gives |", "|---|---|"]
    for kind in Backend.__mro__[::-1]:
        for name, member in vars(kind).items():
            if not name.startswith("_") and (said := inspect.getdoc(member)):
                lines.append(f"| `{name}` | {_escaped(' '.join(said.split()))} |")
    return "\n".join([*lines, ""])


def c_interface_times() -> str:
    """The table of ``models.c_interface`` that the results have."""
    text = (ROOT / "models" / "RESULTS.md").read_text(encoding="utf-8")
    _, _, rest = text.partition("<!-- models.c_interface: begin -->\n")
    return rest.partition("<!-- models.c_interface: end -->")[0]


SECTIONS: Mapping[tuple[str, str], Callable[[], str]] = MappingProxyType(
    {
        ("docs/c-interface.md", "models.c_interface"): c_interface_times,
        ("docs/cli.md", "tracea-optimize"): option_tables,
        ("docs/cli.md", "tracea"): command_tables,
        ("docs/architecture.md", "stages"): stage_picture,
        ("docs/architecture.md", "folders"): folder_table,
        ("docs/add-a-backend.md", "backend protocol"): backend_protocol,
        ("kernels/cpu/CALLS.md", "kernel calls"): call_table,
        ("kernels/gpu/CALLS.md", "kernel calls"): lambda: call_table(GPU_CALLS),
    }
)
"""What makes a section, by its page and name."""


def schema_text(name: str) -> str:
    """The file ``docs/schema/NAME.json``: a JSON Schema with sorted keys."""
    return json.dumps(document_schema(name), indent=1, sort_keys=True) + "\n"


def updated(page: str, name: str) -> str:
    """A page's text with one section as it should be.  Raises ValueError without its markers."""
    text = (ROOT / page).read_text(encoding="utf-8")
    before, begin, rest = text.partition(f"<!-- {name}: begin -->\n")
    _, end, after = rest.partition(f"<!-- {name}: end -->")
    if not (begin and end):
        raise ValueError(f"{page} lacks the markers of {name!r}")
    return f"{before}{begin}\n{SECTIONS[page, name]()}\n{end}{after}"


def main(argv: Sequence[str] | None = None) -> int:
    """Write every section that differs, and name its page."""
    argparse.ArgumentParser(prog="python -m docs.generate", description=__doc__).parse_args(argv)
    for page, name in SECTIONS:
        text = updated(page, name)
        if text != (ROOT / page).read_text(encoding="utf-8"):
            (ROOT / page).write_text(text, encoding="utf-8")
            print(f"{page}: {name}")
    for name in DOCUMENTS:
        path = ROOT / "docs" / "schema" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        if not path.is_file() or path.read_text(encoding="utf-8") != schema_text(name):
            path.write_text(schema_text(name), encoding="utf-8")
            print(f"docs/schema/{path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
