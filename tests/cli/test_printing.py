"""What the commands print: words for a stranger, JSON alone on stdout, nothing when quiet."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.support import UNTIMED, complaints
from tests.tiny import ROOT, product, transformer
from tracea_graph import Options
from tracea_graph.cli import main, optimize_main
from tracea_graph.cli.arguments import optimize_parser, options_from_args, output_is_folder

pytestmark = pytest.mark.usefixtures("highest_level")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("printing")
    transformer(folder)
    product(folder / "product.onnx")
    return folder


@pytest.fixture
def home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The stdout of a command that succeeds and has nothing to complain about."""
    assert optimize_main([*args]) == 0
    out, err = capsys.readouterr()
    assert complaints(err) == ""
    return out


# ---- options -----------------------------------------------------------------------------


def test_no_options_are_the_defaults() -> None:
    assert options_from_args(optimize_parser().parse_args(["m.onnx"])) == Options()


def test_every_option_arrives() -> None:
    line = (
        "m.onnx -o o.onnx --target cpu:avx2 --threads 1,4,1 --shape a=1,b=2 --shape a=3 "
        "--keep all --only x --only y --skip z --budget 5 --no-verify --require-library "
        "--no-prepack --single-file --max-error 0.1 --rtol 1e-3 --atol 1e-4 --data d.npz "
        "--until emit --keep-sources s --cache c --seed 3"
    )
    args = optimize_parser().parse_args(line.split())
    assert not output_is_folder(args)
    assert options_from_args(args) == Options(
        output=Path("o.onnx"), target="cpu:avx2", threads=(1, 4),
        shapes=({"a": 1, "b": 2}, {"a": 3}), keep="all", only=("x", "y"), skip=("z",),
        budget=5.0, verify=False, require_library=True, prepack=False, single_file=True,
        max_error=0.1, rtol=1e-3, atol=1e-4, data=Path("d.npz"), until="emit",
        keep_sources=Path("s"), cache=Path("c"), seed=3,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "wanted"), [("m -o out/", True), ("m n", True), ("m -o out", False), ("m", False)]
)
def test_a_slash_or_several_models_ask_for_a_folder(line: str, wanted: bool) -> None:
    assert output_is_folder(optimize_parser().parse_args(line.split())) == wanted


# ---- the report --------------------------------------------------------------------------


@pytest.mark.compiler
def test_lines_a_program_reads_are_never_wrapped(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(capsys, "tiny-bert.onnx", "--keep", "all", "-v").splitlines()
    assert re.fullmatch(r"tiny-bert.onnx: \d+ nodes", lines[0])
    assert sum("Fused" in line for line in lines) >= 3
    assert all(line == line.rstrip() for line in lines)
    (verified,) = (line for line in lines if line.startswith("verified: "))
    assert re.fullmatch(
        r"verified: largest error \S+ of max\|y\| \(ONNX Runtime's own optimizations: \S+\)",
        verified,
    )
    wrote = [line for line in lines if line.startswith("wrote ")]
    assert [re.sub(r" \([\d.]+ kB\)$", "", line) for line in wrote] == [
        f"wrote tiny-bert.tracea.{ending}" for ending in ("onnx", "so", "json")
    ]
    assert lines[-1] == (
        'load it with options.register_custom_ops_library("./tiny-bert.tracea.so")'
    )
    assert any(line.startswith("gemm ") and "applied" in line for line in lines)


@pytest.mark.compiler
def test_json_alone_is_on_stdout(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = json.loads(printed(capsys, "product.onnx", *UNTIMED, "--json"))
    assert one == json.loads((home / "product.tracea.json").read_text())
    models = ("product.onnx", "tiny-bert.onnx")
    both = json.loads(printed(capsys, *models, *UNTIMED, "--json", "-q"))
    assert [report["input"] for report in both] == [*models]


@pytest.mark.compiler
def test_quiet_prints_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "product.onnx", *UNTIMED, "--quiet") == ""


@pytest.mark.compiler
def test_the_page_covers_all_models(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = "--report", "r.html"
    said = printed(capsys, "product.onnx", "tiny-bert.onnx", *UNTIMED, *files)
    assert said.rstrip().endswith("wrote r.html")
    page = (home / "r.html").read_text()
    assert page.startswith("<!doctype html>") and page.count("<h1") == 2


@pytest.mark.compiler
def test_sources_are_kept(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "tiny-bert.onnx", *UNTIMED, "--keep-sources", "sources")
    sources = list((home / "sources").iterdir())
    assert sources and all("#include" in source.read_text() for source in sources)


@pytest.mark.compiler
@pytest.mark.parametrize("width", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_a_terminal_of_any_width_shows_whole_layer_names(home: Path, width: int) -> None:
    code = "import sys; from tracea_graph.cli import optimize_main; sys.exit(optimize_main())"
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code, home / "tiny-bert.onnx", *UNTIMED], cwd=ROOT,
        stdin=follower, stdout=follower, stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm", "COLUMNS": str(width), "NO_COLOR": "1"},
    )  # fmt: skip
    os.close(follower)
    text = b""
    while chunk := _read(leader):
        text += chunk
    os.close(leader)
    assert process.wait() == 0
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text.decode())
    assert re.search(r"^embeddings +\d", shown, re.M), shown


def _read(leader: int) -> bytes:
    try:
        return os.read(leader, 1 << 16)
    except OSError:  # the other side was closed
        return b""


@pytest.mark.compiler
def test_a_reader_that_leaves_early_is_no_error(home: Path) -> None:
    code = "import sys; from tracea_graph.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "inspect", home / "tiny-bert.onnx"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 0


def test_names_of_any_bytes(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (b"[red]b\\o\n\x1b[31m.onnx", b"\xff.onnx"):
        path = os.path.join(os.fsencode(home), name)
        product(home / "plain.onnx")
        os.rename("plain.onnx", path)
        text = os.fsdecode(name)
        out = printed(capsys, text, "--keep", "all", "--only", "attention", "--report", "r.html")
        assert "kept original: no rewrite applies" in out and "\x1b" not in out
        assert Path(f"{text.removesuffix('.onnx')}.tracea.onnx").exists()


# ---- stages ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ("import", ("LayerNormalization", "MatMul")),
        ("passes", ("FusedEmbedding", "FusedRegion")),
        ("lower", ("kernel", "attention(")),
        ("emit", ("symbol", "lines", "tracea_f32")),
    ],
)
def test_every_stage_can_be_shown(
    home: Path, capsys: pytest.CaptureFixture[str], stage: str, words: tuple[str, ...]
) -> None:
    before = sorted(home.iterdir())
    out = printed(capsys, "tiny-bert.onnx", "--keep", "all", "--until", stage)
    assert all(word in out for word in words)
    told = json.loads(printed(capsys, "tiny-bert.onnx", "--until", stage, "--json"))
    assert len(told["regions"]) > 5
    assert bool(told["programs"]) == (stage in ("lower", "emit"))
    assert bool(told["sources"]) == (stage == "emit")
    assert sorted(home.iterdir()) == before


def test_inspect_shows_the_graph(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "product.onnx"]) == 0
    before = capsys.readouterr().out
    assert main(["inspect", "--fused", "product.onnx"]) == 0
    after = capsys.readouterr().out
    assert "MatMul" in before and "FusedGemm" in after and "MatMul" not in after


@pytest.mark.parametrize("program", [main, optimize_main])
def test_help_is_help(program: object, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        program(["--help"])  # type: ignore[operator]
    assert ended.value.code == 0
    assert "usage: tracea" in capsys.readouterr().out


def test_twice_verbose_shows_the_log(home: Path) -> None:
    code = "import sys; from tracea_graph.cli import optimize_main; sys.exit(optimize_main())"
    words = [home / "product.onnx", *UNTIMED, "--no-custom-ops", "-q", "-vv"]
    ended = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "tracea_graph.pipeline.step_timer: reading" in ended.stderr and ended.stdout == ""
