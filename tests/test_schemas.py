"""Documents say which schema they follow, and follow it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import jsonschema
import numpy as np
import pytest

from docs.generate import schema_text
from tests.tiny import ROOT, product
from tracea_graph import Options, optimize
from tracea_graph.cli import main
from tracea_graph.errors import UsageError
from tracea_graph.json_documents import read_document, to_json
from tracea_graph.json_schemas import DOCUMENTS, document_schema
from tracea_graph.views import Report

FOLDER = ROOT / "docs" / "schema"


@dataclass(frozen=True)
class Menu:
    """A document of the second version of its schema."""

    dish: str
    prices: tuple[float, ...] = ()
    schema_version: Literal[2] = 2


def test_the_published_schemas_are_fresh() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == DOCUMENTS.keys()
    for name in DOCUMENTS:
        assert (FOLDER / f"{name}.json").read_text(encoding="utf-8") == schema_text(name), name


@pytest.mark.parametrize("name", DOCUMENTS)
def test_schemas_are_schemas(name: str) -> None:
    found = document_schema(name)
    jsonschema.Draft202012Validator.check_schema(found)
    own = found["$defs"][found["$ref"].rpartition("/")[2]]
    assert name == "manifest" or own["properties"]["schema_version"]["enum"]


def valid(name: str, document: Any) -> None:
    jsonschema.Draft202012Validator(document_schema(name)).validate(document)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its result, report and plan lock."""
    found = tmp_path_factory.mktemp("documents")
    lock = found / "plan.json"
    report = optimize(product(found / "m.onnx"), Options(keep="all", save_lock=lock))
    assert report.improved and report.groups
    return found


@pytest.mark.compiler
def test_files_follow_their_schemas(folder: Path) -> None:
    report = json.loads((folder / "m.tracea.json").read_text())
    valid("report", report)
    valid("manifest", report["manifest"])
    valid("lock", json.loads((folder / "plan.json").read_text()))
    again = read_document(Report, report, "m.tracea.json", "")
    assert json.loads(again.to_json()) == report


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("explain", ["explain", "m.onnx"]),
        ("verify", ["verify", "m.onnx", "m.tracea.onnx"]),
        ("bench", ["bench", "m.onnx", "--pairs", "2", "--seconds", "1", "--baselines", "ort"]),
        ("doctor", ["doctor"]),
        ("tune", ["tune", "--problem", "gemm:16x64x64", "--budget", "1s", "--threads", "1"]),
        ("cache", ["cache", "ls"]),
        ("serving", ["bench", "m.onnx", "--sessions", "2", "--seconds", "1"]),
        ("report", ["optimize", "m.onnx", "-o", "o.onnx", "--keep", "all", "--no-custom-ops"]),
    ],
)
def test_what_is_printed_follows_its_schema(
    name: str, words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(folder)
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    for one in document if isinstance(document, list) else [document]:
        valid(name, one)
    assert document


def test_figures_without_bounds_are_null() -> None:
    report = Report("m.onnx", "o.onnx", "kept original", "why", error=float("inf"))
    document = json.loads(report.to_json())
    assert document["error"] is None
    valid("report", document)


def test_documents_are_read_back() -> None:
    menu = Menu("soup", (1.5, float(np.float32(2))))
    data = json.loads(to_json(menu)) | {"unknown": 1}
    assert read_document(Menu, data, "menu.json", "write it again") == menu


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "menu.json holds no JSON object; write it again"),
        ({"dish": "soup"}, "menu.json has no schema_version: an older version of this tool wrote"),
        (asdict(Menu("soup")) | {"schema_version": 1}, "by an older version of this tool (schema"),
        ({"schema_version": 1, "model": "m.onnx"}, "menu.json is a document of another kind; "),
        (asdict(Menu("soup")) | {"schema_version": 3}, "version 3, this one reads 2); write it"),
        (asdict(Menu("soup")) | {"dish": 3}, "menu.json is malformed: Expected `str`, got `int`"),
        ({"schema_version": 2}, "missing required field `dish`; write it again"),
    ],
)
def test_other_data_is_refused_in_a_sentence(data: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_document(Menu, data, "menu.json", "write it again")
    assert said in str(caught.value)
