"""Files take their places whole; what an earlier result left goes, nothing else ever does."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from tracea_graph.errors import UsageError
from tracea_graph.pipeline.output_files import (
    ResultPaths,
    StagingFolder,
    paths_of_all,
    result_paths,
    staging,
)

LIBRARY = b"...RegisterCustomOps\0...tracea.0123456789\0..."
DATA = "m.0123456789.data"


@pytest.fixture
def paths(tmp_path: Path) -> ResultPaths:
    return ResultPaths(tmp_path / "m.onnx")


def publish(
    paths: ResultPaths,
    tag: str,
    data: str = "",
    library: bool = False,
    inputs: tuple[Path, ...] = (),
) -> None:
    """Publish a result whose files all say ``tag``; ``data`` names its data file."""
    with staging(paths, inputs) as stage:
        staged = stage.folder / data if data else None
        if staged:
            staged.write_text(tag)
        if library:
            stage.model.with_suffix(".so").write_bytes(LIBRARY + tag.encode())
        report = {"versions": {"tracea": "0"}, "data": data or None, "tag": tag}
        stage.report.write_text(json.dumps(report))
        stage.model.write_text(tag)
        stage.publish(staged, [stage.model.with_suffix(".so")] if library else ())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("output", "target"),
    [
        (None, "in/model.tracea.onnx"),
        ("x.onnx", "x.onnx"),
        ("in", "in/model.tracea.onnx"),
        ("new", "new/model.tracea.onnx"),
    ],
)
def test_where_a_result_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str | None, target: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    found = result_paths(Path("in/model.onnx"), Path(output) if output else None)
    assert found.model == Path(target)
    assert found.of_library(".so") == Path(target).with_suffix(".so")


def test_equal_names_from_two_folders_clash(tmp_path: Path) -> None:
    models = [tmp_path / "a" / "m.onnx", tmp_path / "b" / "m.onnx"]
    with pytest.raises(UsageError, match="are both written to"):
        paths_of_all(models, tmp_path)


def test_a_result_consists_of_whole_files(paths: ResultPaths) -> None:
    publish(paths, "one", DATA, library=True)
    assert names(paths.model.parent) == [DATA, "m.json", "m.onnx", "m.so"]
    assert paths.model.read_text() == "one"


def test_a_new_result_replaces_the_earlier_one_entirely(paths: ResultPaths) -> None:
    publish(paths, "one", DATA, library=True)
    publish(paths, "two", "m.aaaaaaaaaa.data")
    assert names(paths.model.parent) == ["m.aaaaaaaaaa.data", "m.json", "m.onnx"]
    publish(paths, "three")
    assert names(paths.model.parent) == ["m.json", "m.onnx"]
    assert json.loads(paths.report.read_text())["tag"] == paths.model.read_text() == "three"


def test_the_same_data_is_not_written_twice(paths: ResultPaths) -> None:
    publish(paths, "one", DATA)
    data = paths.model.with_name(DATA)
    before = data.stat().st_ino
    publish(paths, "one", DATA)
    assert data.stat().st_ino == before  # who has it mapped shares it
    publish(paths, "three", DATA)
    assert data.read_text() == "three"  # what was there was torn
    data.write_text("eerht")
    publish(paths, "three", DATA)
    assert data.read_text() == "three"  # as many bytes, but others


def test_a_model_beside_its_data_is_moved_and_leaves_nothing(paths: ResultPaths) -> None:
    publish(paths, "one", DATA)
    data, before = paths.model.with_name(DATA), paths.model.with_name(DATA).stat()
    with staging(paths, ()) as stage:
        stage.beside.write_text("two")
        stage.beside.with_suffix(".so").write_bytes(LIBRARY)
        report = {"versions": {"tracea": "0"}, "data": DATA, "tag": "two"}
        stage.report.write_text(json.dumps(report))
        stage.publish(data, [stage.beside.with_suffix(".so")], stage.beside)
    assert paths.model.read_text() == "two" and data.stat().st_ino == before.st_ino
    assert names(paths.model.parent) == [DATA, "m.json", "m.onnx", "m.so"]
    with pytest.raises(RuntimeError), staging(paths, ()) as stage:
        stage.beside.write_text("half")
        raise RuntimeError
    assert names(paths.model.parent) == [DATA, "m.json", "m.onnx", "m.so"]


@pytest.mark.parametrize(
    "name", ["m.data", "m.weights.data", "other.0123456789.data", "m.onnx.data", "../x.data"]
)
def test_files_an_earlier_report_cannot_mean_stay(paths: ResultPaths, name: str) -> None:
    publish(paths, "one")
    claimed = json.loads(paths.report.read_text()) | {"data": name}
    paths.report.write_text(json.dumps(claimed))
    place = paths.model.parent / Path(name).name
    place.write_text("precious")
    publish(paths, "two")
    assert place.read_text() == "precious"


def test_the_inputs_own_data_stays_though_an_earlier_result_had_it(paths: ResultPaths) -> None:
    publish(paths, "one", DATA)
    data, copy = paths.model.with_name(DATA), paths.model.with_name("copy.onnx")
    copy.write_text("refers to the data")
    publish(paths, "two", inputs=(copy, data))
    assert data.read_text() == "one"


@pytest.mark.parametrize("ending", [".so", ".json"])
def test_a_foreign_file_is_not_overwritten(paths: ResultPaths, ending: str) -> None:
    foreign = paths.model.with_suffix(ending)
    foreign.write_text("{}")
    with pytest.raises(UsageError, match="exists and was not written by this tool"):
        publish(paths, "one", library=True)
    assert names(paths.model.parent) == [foreign.name] and foreign.read_text() == "{}"


def test_a_failure_leaves_what_was_there(paths: ResultPaths) -> None:
    publish(paths, "one", DATA, library=True)
    before = {path: path.read_bytes() for path in paths.model.parent.iterdir()}
    for error in (ValueError("bug"), KeyboardInterrupt()):
        with pytest.raises(type(error)), staging(paths, ()) as stage:
            stage.model.write_text("half")
            raise error
    assert {path: path.read_bytes() for path in paths.model.parent.iterdir()} == before


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EFBIG, errno.EROFS])
def test_a_disk_that_refuses_is_a_usage_error(paths: ResultPaths, code: int) -> None:
    with pytest.raises(UsageError, match=r"^cannot write there: No"), staging(paths, ()):
        raise OSError(code, "No", "there")


def test_a_file_that_cannot_be_written_has_the_name_it_would_have_had(paths: ResultPaths) -> None:
    with pytest.raises(UsageError) as caught, staging(paths, ()) as stage:
        raise OSError(errno.ENOSPC, "No", str(stage.report))
    assert str(caught.value) == f"cannot write {paths.report}: No"


def test_a_folder_that_takes_no_files_is_named(
    paths: ResultPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(suffix: str | None, prefix: str, dir: Path) -> str:
        raise OSError(errno.EROFS, "No", f"{dir}/{prefix}x")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(UsageError) as caught, staging(paths, ()):
        pass
    assert str(caught.value) == f"cannot write {paths.model.parent}: No"


def test_other_failures_of_the_system_are_not_blamed_on_the_output(paths: ResultPaths) -> None:
    with pytest.raises(OSError, match="out of processes"), staging(paths, ()):
        raise OSError(errno.EAGAIN, "out of processes")


@pytest.mark.parametrize("fails", [True, False])
def test_a_folder_is_made_for_results_alone(tmp_path: Path, fails: bool) -> None:
    paths = ResultPaths(tmp_path / "new" / "m.onnx")
    if fails:
        with pytest.raises(RuntimeError), staging(paths, ()):
            raise RuntimeError
    else:
        publish(paths, "one")
    assert paths.model.parent.exists() != fails


def test_a_stage_lies_beside_the_output(paths: ResultPaths) -> None:
    with staging(paths, ()) as stage:
        assert isinstance(stage, StagingFolder)
        assert stage.folder.parent == paths.model.parent
        assert stage.model.name == paths.model.name
    assert names(paths.model.parent) == []
