"""One record makes an option: flags, a key in files, the check of a value, a reference row."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tracea_graph.cli.arguments import optimize_parser, options_from_args, tool_parser
from tracea_graph.cli.config_file import insert_config_options
from tracea_graph.errors import UsageError
from tracea_graph.options import ALONE, OPTIONS, Options
from tracea_graph.options.option_records import Use, option, options_by_keyword

EVERY = [*OPTIONS.items(), *ALONE.items()]


@dataclass(frozen=True)
class Menu:
    """Options of another program, one of each kind."""

    portions: int = option(
        1, parse=int, metavar="N", help="how many", more="how many `a|b`",
        must=(lambda value: value > 0, "be above 0"), also={"order": Use("as usual", 2)},
    )  # fmt: skip
    size: str = option("small", choices=("small", "large"), help="which size")
    bread: bool = option(True, name="no-bread", flag=True, help="leave it out")
    sauces: tuple[str, ...] = option((), name="sauce", short="s", many=True, help="with it")
    place: str = option("here", values=lambda: ("here", "there", "away"))


def parsed(command: str, *words: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    for keyword, one in options_by_keyword(Menu).items():
        if command in ("", *one.also):
            one.add(parser.add_argument, keyword, command)
    return {
        k: options_by_keyword(Menu)[k].value(v) for k, v in vars(parser.parse_args(words)).items()
    }


def test_a_record_makes_flags() -> None:
    assert parsed("") == {
        "portions": 1, "size": "small", "bread": True, "sauces": (), "place": "here"
    }  # fmt: skip
    words = [
        "--portions",
        "3",
        "--size",
        "large",
        "--no-bread",
        "-s",
        "hot",
        "--sauce",
        "mild",
        "--place",
        "moon",
    ]
    assert parsed("", *words) == {
        "portions": 3, "size": "large", "bread": False, "sauces": ("hot", "mild"), "place": "moon"
    }  # fmt: skip
    assert parsed("order") == {"portions": 2}, "another command has its own default"


def test_a_record_checks_what_python_gives() -> None:
    records = options_by_keyword(Menu)
    records["portions"].check(1)
    with pytest.raises(UsageError, match="--portions must be above 0, not 0"):
        records["portions"].check(0)
    with pytest.raises(UsageError, match="--size must be small or large, not 'huge'"):
        records["size"].check("huge")


def test_a_record_makes_a_row() -> None:
    records = options_by_keyword(Menu)
    assert records["portions"].row("portions") == (
        r"| `--portions N` | how many `a\|b` | `portions` |"
    )
    assert records["size"].row("size") == r"| `--size small\|large` | which size | `size` |"
    assert records["sauces"].row("") == "| `-s`, `--sauce` | with it |  |"
    assert records["place"].sentence("") == "here, there or away"


def test_every_option_is_described() -> None:
    names = [one.name for _, one in EVERY]
    assert len({*names}) == len(names)
    for keyword, one in EVERY:
        assert one.sentence("") and (one.more or one.help), keyword
        assert one.group or keyword == "output"


def test_every_command_an_option_names_exists() -> None:
    def commands(parser: argparse.ArgumentParser, name: str = "") -> set[str]:
        inside = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
        found = {name} if name else set[str]()
        return found.union(
            *(commands(p, f"{name} {n}".strip()) for a in inside for n, p in a.choices.items())
        )

    known = commands(tool_parser())
    assert {command for _, one in EVERY for command in one.also} <= known


FILE: dict[str, Any] = {
    "output": "o.onnx", "effort": "quick", "threads": [1, 2], "shape": [{"a": 1}, "a=2,b=3"],
    "data": "d.npz", "holdout": "h.npz", "metric": "m.py:f", "budget": "1.5m", "no-verify": True,
    "max-error": 0.5, "rtol": 1e-3, "atol": 0, "seed": 7, "storage": "sqlite:///x",
    "concurrent-runs": 8,
    "keep": "all", "precision": "bf16", "window": ["0-5:256+1", 64], "low-rank": 0.25,
    "prune": "2:4", "only": ["x", "y"], "skip": "z", "freeze-initializers": True,
    "no-custom-ops": True, "target": "cpu:avx2", "save-lock": "s.json", "no-cache": True,
    "lock": "l.json", "require-library": False, "no-prepack": True, "single-file": True,
    "keep-sources": "src", "until": "emit", "cache": "c", "report": "r.html", "json": True,
    "keep-on-interrupt": True, "custom-ops-library": "c.so", "unused-output": ["p", "q"],
    "feed": "v", "explain": True, "quiet": True, "verbose": True,
}  # fmt: skip


def test_every_option_may_stand_in_a_file(tmp_path: Path) -> None:
    assert {one.name for _, one in EVERY if one.in_file} == FILE.keys()
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(FILE))
    args = optimize_parser().parse_args(insert_config_options(["m.onnx", "--config", str(path)]))
    made, plain = options_from_args(args), Options()
    same = [k for k in OPTIONS if getattr(made, k) == getattr(plain, k)]
    assert same == ["patterns", "require_library"], "these the file leaves as they are"
    assert made.shapes == ({"a": 1}, {"a": 2, "b": 3}) and made.threads == (1, 2)
    assert args.report == Path("r.html") and args.json and args.quiet and args.verbose == 1


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"until": "end"}, "--until must be import or passes or lower or emit, not 'end'"),
        ({"seed": -1}, "--seed must be 0 or more, not -1"),
        ({"custom_ops": False, "require_library": True}, "contradict each other"),
    ],
)
def test_what_makes_no_sense_from_python(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Options(**values)


def test_what_a_lock_keeps_can_stand_in_json() -> None:
    kept = {k: getattr(Options(), k) for k, one in OPTIONS.items() if one.locked}
    assert json.loads(json.dumps(kept)).keys() >= {"keep", "precision", "only", "budget"}
    assert not any(one.place for one in OPTIONS.values() if one.locked)


def test_text_given_in_python_is_read_as_on_the_command_line(tmp_path: Path) -> None:
    found = Options(
        output=str(tmp_path), threads="1,2", shapes="batch=2,seq=9", budget="1.5m", skip="conv"
    )
    assert (found.output, found.threads, found.budget) == (tmp_path, (1, 2), 90.0)
    assert (found.shapes, found.skip) == (({"batch": 2, "seq": 9},), ("conv",))
    with pytest.raises(UsageError, match="--budget"):
        Options(budget="soon")
