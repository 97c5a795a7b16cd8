"""Outputs that cannot be written: one clear line, nothing half-written, the input untouched."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.cli.support import COMMAND, UNTIMED, complaints, refused
from tests.tiny import ROOT, product
from tracea_graph.cli import main, optimize_main
from tracea_graph.cli.error_messages import report_failure


@pytest.mark.parametrize("link", [None, os.link, os.symlink], ids=["same", "hard", "symbolic"])
def test_the_output_is_the_input(
    home: Path, capsys: pytest.CaptureFixture[str], link: Callable[[str, str], None] | None
) -> None:
    if link:
        link("good.onnx", "other.onnx")
    name = "other.onnx" if link else "./good.onnx"
    assert "is the input; choose another name" in refused(capsys, "good.onnx", "-o", name)
    assert "is the input; choose another name" in refused(capsys, name, "-o", "good.onnx")


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("nowhere/x.onnx", "the folder nowhere does not exist"),
        ("good.onnx/x.onnx", "the folder good.onnx does not exist"),
        ("file.onnx/", "must be a folder here"),
        ("x.bin", "must end in .onnx, or be a folder"),
        ("folder.onnx", "good.tracea.onnx is a folder"),
    ],
)
def test_an_impossible_output(
    home: Path, capsys: pytest.CaptureFixture[str], output: str, said: str
) -> None:
    (home / "file.onnx").touch()
    (home / "folder.onnx" / "good.tracea.onnx").mkdir(parents=True)
    assert said in refused(capsys, "good.onnx", "-o", output)


@pytest.mark.parametrize("source", ["", ".", "/"])
def test_a_model_that_has_no_name(
    home: Path, capsys: pytest.CaptureFixture[str], source: str
) -> None:
    assert "is a folder, not a model" in refused(capsys, source)


@pytest.mark.parametrize("ending", ["so", "json"])
def test_a_foreign_file_in_the_way(
    home: Path, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    (home / f"out.{ending}").write_text('{"mine": true}')
    said = refused(capsys, "good.onnx", "-o", "out.onnx")
    assert f"out.{ending} exists and was not written by this tool" in said


def test_an_output_that_is_the_inputs_data(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    product(home / "in.onnx", external="out.so")
    assert "out.so belongs to the input" in refused(capsys, "in.onnx", "-o", "out.onnx")


def test_several_models_that_would_overwrite_each_other(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "a").mkdir()
    product(home / "a" / "good.onnx")
    assert "are both written to" in refused(capsys, "good.onnx", "a/good.onnx", "-o", "out")
    assert "good.onnx is given twice" in refused(capsys, "good.onnx", "good.onnx", "-o", "out")
    assert "must be a folder" in refused(capsys, "good.onnx", "a/good.onnx", "-o", "out.onnx")
    product(home / "good.tracea.onnx")
    assert "would overwrite it" in refused(capsys, "good.onnx", "good.tracea.onnx")


@pytest.fixture
def locked() -> Iterator[Path]:
    """A folder this process may read but not write, even where it began as root."""
    before = os.geteuid()
    with tempfile.TemporaryDirectory(prefix="tracea-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        product(folder / "good.onnx")
        if before:
            folder.chmod(0o555)
        else:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            os.seteuid(before)
            folder.chmod(0o755)


def test_no_permission_to_write(locked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert optimize_main([str(locked / "good.onnx"), *UNTIMED]) == 2
    out, err = capsys.readouterr()
    assert not out and complaints(err).count("\n") == 1
    assert "is not writable; choose another with -o" in err
    assert [path.name for path in locked.iterdir()] == ["good.onnx"]


def test_a_cache_that_can_hold_nothing_is_refused_at_once(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").touch()
    for command in (["optimize", "good.onnx", *UNTIMED], ["tune", "good.onnx"]):
        assert main([*command, "--cache", "file/cache"]) == 2
        out, err = capsys.readouterr()
        line = err.strip()
        assert not out and line.count("\n") == 0  # no step has begun
        assert line.startswith("error: The build cache file/cache/objects cannot be written (Not ")
    assert optimize_main(["good.onnx", *UNTIMED, "--no-custom-ops", "--cache", "file/cache"]) == 0


@pytest.mark.compiler
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_the_disk_is_full_when_files_move_into_place(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    # compiled before: the object cache moves its files too
    assert optimize_main(["good.onnx", *UNTIMED, "-q", "-o", "warm/"]) == 0

    def fail(source: Path, target: Path) -> None:
        raise OSError(code, os.strerror(code), str(target))

    monkeypatch.setattr("tracea_graph.pipeline.output_files.os.replace", fail)
    said = refused(capsys, "good.onnx", *UNTIMED)
    assert said.startswith("error: cannot write ") and os.strerror(code) in said


@pytest.mark.compiler
@pytest.mark.parametrize("limit_kb", [4, 100], ids=["model", "library"])
def test_the_disk_is_full_while_writing(tmp_path: Path, limit_kb: int) -> None:
    """A limit on file sizes stands for a full disk: writes fail midway."""
    model = product(tmp_path / "m.onnx")
    assert optimize_main([str(model), *UNTIMED, "-q", "-o", str(tmp_path / "warm")]) == 0

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_kb << 10, limit_kb << 10))

    done = subprocess.run(
        [*COMMAND, model, *UNTIMED],
        capture_output=True, text=True, preexec_fn=limit, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode in (2, 4), done.stderr
    err = complaints(done.stderr)
    assert err.startswith("error: ") and err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "warm"]


def test_no_file_more_may_be_opened(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_failure(OSError(errno.EMFILE, "Too many open files"), 0) == 2
    assert "too many files are open" in capsys.readouterr().err


def test_a_warning_names_no_line_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text alone is shown, on one line; other programs in this process keep their format."""
    before, shown = warnings.formatwarning, list[str]()

    def run(*_: object) -> int:
        for kind in (UserWarning, DeprecationWarning):
            shown.append(warnings.formatwarning("two\nlines", kind, "source.py", 7))
        return 0

    monkeypatch.setattr(import_module("tracea_graph.cli.main"), "_run", run)
    assert optimize_main(["good.onnx"]) == 0
    assert shown[0] == "warning: two lines\n"
    assert shown[1].startswith("source.py:7: DeprecationWarning: two")
    assert warnings.formatwarning is before
