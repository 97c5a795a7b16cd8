"""``--config``: options and hints from a file, checked like those of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.cli.support import refused
from tracea_graph.cli.arguments import optimize_parser, options_from_args
from tracea_graph.cli.config_file import insert_config_options
from tracea_graph.options import Options
from tracea_graph.options.config_files import save_config


def options(*words: str) -> Options:
    return options_from_args(optimize_parser().parse_args(insert_config_options(words)))


def test_every_long_option_may_stand_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    hint = {"match": "gemm 768x*", "tile": {"rows": 64}, "stages": 2, "epilogue": "fused"}
    settings = {
        "threads": [1, 2], "budget": "5m", "shape": ["seq=128", {"batch": 2, "seq": 16}],
        "keep": "all", "no-verify": True, "single-file": False, "max-error": 0.01,
        "only": ["fuse-norm"], "storage": "sqlite:///x", "patterns": [hint],
    }  # fmt: skip
    path.write_text(yaml.safe_dump(settings))
    found = options("m.onnx", "--config", str(path))
    assert found.threads == (1, 2) and found.budget == 300.0 and not found.verify
    assert found.shapes == ({"seq": 128}, {"batch": 2, "seq": 16})
    assert (found.keep, found.single_file, found.max_error) == ("all", False, 0.01)
    assert found.only == ("fuse-norm",) and found.storage == "sqlite:///x"
    assert found.patterns == (hint,)


def test_the_command_line_wins(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("budget: 10\nseed: 3\n")
    found = options("m.onnx", f"--config={path}", "--budget", "20")
    assert (found.budget, found.seed) == (20.0, 3)


def test_what_is_saved_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    save_config(path, {"threads": [1], "storage": "", "seed": 0}, [{"match": "gemm*"}])
    found = options("m.onnx", "--config", str(path))
    assert found.threads == (1,) and found.patterns == ({"match": "gemm*"},)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1, 2]", "does not map options to values"),
        ("a: [", "is not valid YAML"),
        ("nonsense: 1", "there is no option --nonsense=1"),
        ("thr: 1", "there is no option --thr=1"),
        ("conf: other.yaml", "there is no option --conf=other.yaml"),
        ("budget: soon", "'soon' is not a time such as 60"),
        ("config: other.yaml", "'config' is not allowed in a file"),
        ("patterns: gemm", "patterns must be a list of hints"),
        ("patterns: [{tile: {rows: 4}}]", "a hint needs a match"),
        ("patterns: [{match: g, tile: {rows: 0}}]", "rows of a hint must be at least 1, not 0"),
        ("patterns: [{match: g, stages: 3}]", "stages must be 1 or 2, not 3"),
        ("patterns: [{match: g, epilogue: 1}]", "epilogue is one of fused, plain, any, not 1"),
        ("patterns: [{match: g, colour: 1}]", "not colour"),
    ],
)
def test_files_that_make_no_sense(
    home: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    Path("c.yaml").write_text(text)
    assert said in refused(capsys, "good.onnx", "--config", "c.yaml")


def test_a_file_that_is_not_there(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--config gone.yaml cannot be read" in refused(
        capsys, "good.onnx", "--config", "gone.yaml"
    )
