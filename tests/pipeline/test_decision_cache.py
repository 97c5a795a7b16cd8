"""An equal run applies what an earlier one decided, says so, and verifies."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import numpy_helper

from tests.tiny import product
from tracea_graph import Options, api
from tracea_graph.check.rewrite_selection import GroupSelection, GroupVerdict, RewriteGroup
from tracea_graph.check.timing_statistics import Ratio
from tracea_graph.commands.verify import verify_models
from tracea_graph.config import Environment
from tracea_graph.kernels.cpu.backend import CpuBackend
from tracea_graph.onnx_io import external_data, model_writer
from tracea_graph.pipeline import candidate_models, decision_cache, evaluator
from tracea_graph.views import Report

pytestmark = pytest.mark.compiler
GAIN = Ratio(2.0, 1.0, 2.0, 1.0, 2.0, 1.9, 2.1, 30)
Run = Callable[..., Report]


@pytest.fixture(scope="module", autouse=True)
def _timed_at_any_level() -> Iterator[None]:
    """Time the level ``scalar`` too: it takes one verification, and the times are made up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuBackend, "unmeasured", lambda self, levels: "")
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return product(tmp_path_factory.mktemp("decisions") / "m.onnx", 64, 64, copies=3)


def all_faster(counts: list[int]) -> Callable[..., GroupSelection]:
    """A decision that keeps every group, and counts the groups it is asked about."""

    def select_faster(
        original: Path, groups: Sequence[RewriteGroup], build: Any, feeds: Any, **named: Any
    ) -> GroupSelection:
        counts.append(len(groups))
        verdicts = tuple(GroupVerdict(g, True, "measured") for g in groups)
        kept = frozenset(g.key for g in groups)
        return GroupSelection(kept, verdicts, {(1, "default"): GAIN}, build(frozenset()))

    return select_faster


def runner(model: Path, folder: Path) -> Run:
    """Optimizes the model with a cache of its own, compiled objects aside."""
    cache = folder / "cache"
    objects = Environment().cache / "objects"
    objects.mkdir(parents=True, exist_ok=True)
    if not cache.exists():
        cache.mkdir()
        (cache / "objects").symlink_to(objects)

    def optimize(path: Path = model, **more: Any) -> Report:
        options = {"target": "cpu:scalar", **more}  # one level to verify is enough
        return api.optimize(path, Options(output=folder / "out.onnx", cache=cache, **options))

    return optimize


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many groups were decided about in each run that decided; all are faster."""
    counts: list[int] = []
    monkeypatch.setattr(evaluator, "select_faster", all_faster(counts))
    return counts


@pytest.fixture
def run(model: Path, tmp_path: Path, decided: list[int]) -> Run:
    return runner(model, tmp_path)


@pytest.fixture(scope="module")
def earlier(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The decision of one earlier run, in its folder."""
    folder = tmp_path_factory.mktemp("earlier")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluator, "select_faster", all_faster([]))
        assert runner(model, folder)().improved
    return folder / "cache" / decision_cache.FOLDER


@pytest.fixture
def again(run: Run, earlier: Path, tmp_path: Path) -> Run:
    """A run after the earlier one: its decision lies in the cache."""
    shutil.copytree(earlier, tmp_path / "cache" / decision_cache.FOLDER)
    return run


def test_an_equal_run_decides_nothing_and_verifies(
    run: Run, decided: list[int], model: Path, tmp_path: Path
) -> None:
    first = run(target="host")
    files = [(tmp_path / f"out{end}").read_bytes() for end in (".onnx", ".so")]
    again = run(shutil.copy(model, tmp_path / "copy.onnx"), target="host")
    assert len(decided) == 1
    assert first.improved and again.improved and again.status == "passed"
    assert "2.00× in the median" in first.reason and "decided on" not in first.reason
    assert "decided on 20" in again.reason and again.reason.endswith("verified again now")
    assert "2.00× in the median" in again.reason and again.timings == first.timings
    assert again.timed_at and not first.timed_at
    assert again.groups == first.groups
    assert [(tmp_path / f"out{end}").read_bytes() for end in (".onnx", ".so")] == files
    assert any("verified earlier with an identical library" in note for note in again.notes) == (
        len(again.levels) > 1
    )


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The hashes of data files that were written; all results have one."""
    hashes: list[str] = []
    write_data = external_data.write_data

    def write(file: Any, weights: Any) -> Any:
        places, digest = write_data(file, weights)
        hashes.append(digest)
        return places, digest

    monkeypatch.setattr(external_data, "write_data", write)
    monkeypatch.setattr(model_writer, "INLINE_LIMIT", 0)
    return hashes


@pytest.fixture(scope="module")
def first(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an earlier run: its decision, and its result with a data file."""
    folder = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluator, "select_faster", all_faster([]))
        patch.setattr(model_writer, "INLINE_LIMIT", 0)
        assert runner(model, folder)().improved
    return folder


@pytest.fixture
def data(first: Path, tmp_path: Path) -> Path:
    """The data file of that run's result, all of which lies where the next run writes its own."""
    shutil.copytree(first, tmp_path, symlinks=True, dirs_exist_ok=True)
    (found,) = tmp_path.glob("*.data")
    return found


def data_of(report: Report) -> Path:
    assert report.data is not None
    return Path(report.data)


def test_weights_that_are_there_are_not_written_again(
    data: Path, run: Run, written: list[str], model: Path, tmp_path: Path
) -> None:
    before, count = data.stat(), len(written)
    files = [(tmp_path / f"out{end}").read_bytes() for end in (".onnx", ".so")]
    again = run()
    assert [(tmp_path / f"out{end}").read_bytes() for end in (".onnx", ".so")] == files
    assert "decided on" in again.reason and again.status == "passed"
    assert data_of(again) == data and len(written) == count
    after = data.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert not list(data.parent.glob(".tracea-*"))
    assert verify_models(model, Path(again.output), Options()).verification.status == "passed"


def _flip(data: Path) -> None:
    spoilt = bytearray(data.read_bytes())
    spoilt[len(spoilt) // 2] ^= 1
    times = data.stat()
    data.write_bytes(spoilt)
    os.utime(data, ns=(times.st_atime_ns, times.st_mtime_ns))


def _move_away(data: Path) -> None:
    data.rename(data.with_name("elsewhere"))
    data.symlink_to("elsewhere")


@pytest.mark.parametrize(
    "spoil",
    [_flip, lambda data: os.truncate(data, 4096), Path.unlink, _move_away],
    ids=["one bit", "truncated", "gone", "a link"],
)
def test_weights_that_are_not_what_was_written_are_written_again(
    data: Path, run: Run, written: list[str], spoil: Callable[[Path], None]
) -> None:
    right, count = data.read_bytes(), len(written)
    spoil(data)
    again = run()
    assert "decided on" in again.reason and again.status == "passed"
    assert data_of(again) == data and len(written) == count + 1
    assert data.read_bytes() == right


def test_data_of_other_weights_is_not_taken(
    data: Path, run: Run, decided: list[int], written: list[str], tmp_path: Path
) -> None:
    (path,) = (tmp_path / "cache" / decision_cache.FOLDER).glob("*.json")
    found = json.loads(path.read_text())
    found["data"]["places"] = dict(list(found["data"]["places"].items())[1:])
    path.write_text(json.dumps(found))
    right = data.read_bytes()
    again = run()
    assert "decided on" not in again.reason and len(decided) == 1
    assert data_of(again) == data and data.read_bytes() == right


def test_what_one_run_decided_holds_in_another_place(again: Run, decided: list[int]) -> None:
    assert "decided on" in again().reason and not decided


@pytest.mark.parametrize("change", [{"use_cache": False}, {"budget": 77.0}])
def test_what_differs_is_decided_anew(
    again: Run, decided: list[int], change: dict[str, Any]
) -> None:
    assert "decided on" not in again(**change).reason
    assert len(decided) == 1


def test_other_weights_are_another_model(
    again: Run, decided: list[int], model: Path, tmp_path: Path
) -> None:
    trained = onnx.load(model)
    weight = trained.graph.initializer[0]
    numbers = numpy_helper.to_array(weight).copy()
    numbers.flat[0] += 1
    weight.CopyFrom(numpy_helper.from_array(numbers, weight.name))
    onnx.save(trained, tmp_path / "trained.onnx")
    again(tmp_path / "trained.onnx")
    assert len(decided) == 1


def test_another_compiler_machine_or_source_decides_anew(
    again: Run, decided: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = decision_cache.machine_facts
    monkeypatch.setattr(
        decision_cache, "machine_facts", lambda *a: {**facts(*a), "compiler": "another"}
    )
    again()
    assert len(decided) == 1
    monkeypatch.setattr(decision_cache, "_sources", lambda: "others")
    again()
    assert len(decided) == 2
    again()
    assert len(decided) == 2


def test_schedules_found_since_make_it_out_of_date(
    again: Run, decided: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def tables(tuned: Any) -> dict[Any, Any]:
        return {t.case.problem: (replace(t.case.problem.defaults[-1], nc=2),) for t in tuned}

    monkeypatch.setattr(candidate_models, "schedule_tables", tables)
    assert "decided on" not in again().reason and len(decided) == 1
    assert "decided on" in again().reason and len(decided) == 1


def test_a_result_that_is_wrong_now_is_decided_anew(
    again: Run, decided: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    compare, wrong = evaluator.compare_with_reference, [True]

    def once(*given: Any, **named: Any) -> Any:
        found = compare(*given, **named)
        return replace(found, status="failed") if wrong and wrong.pop() else found

    monkeypatch.setattr(evaluator, "compare_with_reference", once)
    report = again()
    assert report.improved and "decided on" not in report.reason and len(decided) == 1


@pytest.mark.parametrize("text", ["{", '{"made": 1, "gain": "", "lock": 3}'])
def test_a_spoilt_decision_is_made_again(
    again: Run, decided: list[int], tmp_path: Path, text: str
) -> None:
    (path,) = (tmp_path / "cache" / decision_cache.FOLDER).glob("*.json")
    path.write_text(text)
    again()
    assert len(decided) == 1
    assert json.loads(path.read_text())["gain"].endswith("2.00× in the median")


@pytest.mark.parametrize("still", [False, True])
def test_a_decision_of_a_busy_machine_is_made_again_on_a_quiet_one(
    again: Run, decided: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, still: bool
) -> None:
    (path,) = (tmp_path / "cache" / decision_cache.FOLDER).glob("*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "busy": True}))
    monkeypatch.setattr(decision_cache, "other_processes_busy", lambda: still)
    again()
    assert len(decided) == (0 if still else 1)
    assert json.loads(path.read_text())["busy"] is still


def test_an_original_that_was_kept_is_judged_anew(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def none(
        original: Path, groups: Sequence[RewriteGroup], *given: Any, **named: Any
    ) -> GroupSelection:
        counts.append(1)
        verdicts = tuple(GroupVerdict(g, False, "dropped: no gain") for g in groups)
        return GroupSelection(frozenset(), verdicts, {(1, "default"): GAIN}, None)

    monkeypatch.setattr(evaluator, "select_faster", none)
    assert not run().improved and not run().improved
    assert len(counts) == 2 and not (tmp_path / "cache" / decision_cache.FOLDER).exists()


def test_old_decisions_go_and_a_folder_that_cannot_be_written_costs_time_alone(
    run: Run, decided: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache" / decision_cache.FOLDER
    folder.write_text("in the way")
    assert run().improved and run().improved
    assert len(decided) == 2
    folder.unlink()
    monkeypatch.setattr(decision_cache, "_MOST", 1)
    run()
    run(budget=77.0)
    assert len(list(folder.glob("*.json"))) == 1
