"""Settings, plans and variables that make no sense: one clear line each, however they are made."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import parser

from tests.cli.support import UNTIMED, refused
from tracea_graph.cli import main
from tracea_graph.target import BACKENDS

LONGEST = 300
"""Characters of a complaint about text of any length."""

ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)
)
"""Nine to the ninth values, in half a kilobyte."""
FOREIGN = """
<ir_version: 8, opset_import: ["" : 17, "nowhere" : 1]>
m (float[4] x) => (float[4] y) { t = Tanh (x) e = Exp (t) y = nowhere.Foo (e) }
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "nests lists too deeply"),
        ("shape: " + "[" * 100_000 + "]" * 100_000, "nests lists too deeply"),
        (ALIASES, "invalid value for 'a1': it holds lists or mappings"),
        (f"{ALIASES}shape: {{a: *a8}}", "invalid value for 'a1'"),
        ("patterns:\n- match: x\n  tile: {rows: &a [*a]}", "rows of a hint must be at least 1"),
        ("patterns: &a [*a]", "a hint needs a match"),
        ("shape: &a [*a]", "invalid value for 'shape'"),
        ("budget: " + "9" * 100_000, "is not valid YAML: Exceeds the limit"),
        ("budget: 0x" + "9" * 100_000, "invalid value for 'budget'"),
        ("budget: 2001-99-99", "is not valid YAML: month must be in 1..12"),
        ('output: "a\\0b.onnx"', "invalid value for 'output': it holds a NUL character"),
    ],
    ids=["open", "deep", "aliases", "sizes", "tile", "itself", "shape", "digits", "hex", "date",
         "nul"],
)  # fmt: skip
def test_a_file_of_settings_that_makes_no_sense(
    home: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    Path("odd.yaml").write_text(text)
    found = refused(capsys, "good.onnx", "--config", "odd.yaml")
    assert said in found and len(found) < LONGEST


def test_a_complaint_has_an_end(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(refused(capsys, "good.onnx", "--precision", "x" * 200_000)) < 10_000


def test_a_compiler_whose_quotes_do_not_end(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", '"x')
    said = refused(capsys, "good.onnx", *UNTIMED, "--cache", "../empty", code=4)
    assert said == 'error: CXX is not a command, No closing quotation: "x\n'


# ---- plans -------------------------------------------------------------------------------


def put(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda plan: plan.__setitem__(name, value)


def put_inside(name: str, key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda plan: (plan[name][0] if isinstance(plan[name], list) else plan[name]).update(
        {key: value}
    )


SPOILT = {
    "isas": [put("isas", value) for value in ([1, 2], [None], [["scalar"]], None, "scalar", {})],
    "tracea": [put("tracea", [1])],
    "structure": [put("structure", 3)],
    "bindings": [put("bindings", value) for value in (3, [["rows", 1]], {"rows": "x"})],
    "improved": [put("improved", "yes")],
    "frozen": [put("frozen", value) for value in ([[{}, 1]], [["a"]], 3)],
    "excluded": [put("excluded", value) for value in ([[{}, [], 3]], [["a", "b"]], "abc")],
    "schedules": [put("schedules", value) for value in ([[1, 2]], [[]], [[{}, [{"x": 1}]]])],
    "machine": [put("machine", 3), put_inside("machine", "gflops", "many")],
    "settings": [
        put("settings", []),
        *(put_inside("settings", "only", value) for value in (3, None, [[]], "abc", [3])),
        *(put_inside("settings", "budget", value) for value in ("x", None, [1])),
        put_inside("settings", "max_error", "x"),
        put_inside("settings", "custom_ops", "x"),
    ],
    "groups": [
        put("groups", {}),
        *(put_inside("groups", "group", value) for value in ([], None)),
        *(put_inside("groups", "count", value) for value in ("x", None)),
        *(put_inside("groups", "originals", value) for value in (3, [3])),
        *(put_inside("groups", "gains", value) for value in (3, ["x"])),
    ],
}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A good plan."""
    from tests.tiny import product
    from tracea_graph import Options, optimize

    folder = tmp_path_factory.mktemp("plan")
    lock = folder / "plan.json"
    chosen = Options(keep="all", verify=False, save_lock=lock)
    optimize(product(folder / "good.onnx"), chosen)
    found: dict[str, Any] = json.loads(lock.read_text())
    return found


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("name", "spoil"),
    [(name, spoil) for name, ways in SPOILT.items() for spoil in ways],
)
def test_a_plan_that_is_malformed(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    plan: dict[str, Any],
    name: str,
    spoil: Callable[[dict[str, Any]], None],
) -> None:
    spoilt = json.loads(json.dumps(plan))
    spoil(spoilt)
    Path("plan.json").write_text(json.dumps(spoilt))
    said = refused(capsys, "good.onnx", "--lock", "plan.json")
    assert "the plan lock plan.json is malformed" in said and f"`$.{name}" in said


# ---- the processor, and ONNX Runtime -----------------------------------------------------


@pytest.mark.parametrize("command", [(), ("verify", "good.onnx"), ("inspect",), ("doctor",)])
def test_a_level_there_is_none_of(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    monkeypatch.setenv("TRACEA_ISA", "foo")
    names = ", ".join(level for backend in BACKENDS for level in backend.caps)
    said = f"error: TRACEA_ISA is 'foo', but must be one of {names}\n"
    if not command:
        assert refused(capsys, "good.onnx") == said
        return
    assert main([*command, *(["good.onnx"] if command != ("doctor",) else [])]) == 2
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    "command", [("bench",), ("bench", "--profile"), ("verify", "foreign.onnx")]
)
def test_what_onnx_runtime_cannot_load_is_no_model(
    home: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    onnx.save(parser.parse_model(FOREIGN), "foreign.onnx")
    assert main([*command, "foreign.onnx"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    assert "ONNX Runtime cannot load foreign.onnx: " in err


def test_what_onnx_runtime_cannot_load_is_not_optimized(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether a rewrite applies or not."""
    onnx.save(parser.parse_model(FOREIGN), "foreign.onnx")
    for more in ((), ("--only", "attention"), ("--keep", "all")):
        assert "ONNX Runtime cannot load foreign.onnx: " in refused(capsys, "foreign.onnx", *more)
