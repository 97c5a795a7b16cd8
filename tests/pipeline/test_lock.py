"""A locked plan makes the same files again without measuring, or says why it cannot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.tiny import product, transformer
from tracea_graph import Options, api
from tracea_graph.check.rewrite_selection import GroupSelection, GroupVerdict, RewriteGroup
from tracea_graph.errors import UsageError
from tracea_graph.kernels.program import Schedule
from tracea_graph.pipeline import candidate_models, evaluator
from tracea_graph.tuning import Problem, Workload

pytestmark = pytest.mark.compiler

FILES = (".onnx", ".so")


def never(*args: Any, **named: Any) -> Any:
    raise AssertionError("a locked plan leaves nothing to measure")


def all_but_the_first(
    original: Path, groups: Sequence[RewriteGroup], build: Any, feeds: Any, **named: Any
) -> GroupSelection:
    """Decides without a clock: the first group is no faster, the others are."""
    verdicts = tuple(GroupVerdict(g, i > 0, "measured") for i, g in enumerate(groups))
    kept = frozenset(v.group.key for v in verdicts if v.kept)
    return GroupSelection(kept, verdicts, {}, build(frozenset({groups[0].key})))


def other_schedules(
    workloads: Sequence[Workload], *given: Any, **named: Any
) -> Mapping[Problem, Any]:
    def other(schedule: Schedule) -> Schedule:
        return schedule.having(**({"rows": 16} if hasattr(schedule, "rows") else {"nc": 2}))

    problems = (workload.problem for workload in workloads)
    return {problem: tuple(map(other, problem.defaults)) for problem in problems}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return transformer(tmp_path_factory.mktemp("lock"))


@pytest.fixture(scope="module")
def locked(model: Path) -> Path:
    """``first.onnx`` and the plan it was made by."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluator, "select_faster", all_but_the_first)
        patch.setattr(candidate_models, "tune", other_schedules)
        patch.setattr(candidate_models, "schedule_tables", dict)
        plan = model.with_name("plan.json")
        out = model.with_name("first.onnx")
        report = api.optimize(model, Options(output=out, save_lock=plan))
    assert report.improved and report.kernels
    return plan


def test_the_same_plan_makes_the_same_files(
    model: Path, locked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((evaluator, "select_faster"), (candidate_models, "tune")):
        monkeypatch.setattr(module, name, never)
    out = tmp_path / "again.onnx"
    report = api.optimize(model, Options(output=out, lock=locked))
    assert report.status == "passed" and str(locked) in report.reason
    for ending in FILES:
        first = model.with_name(f"first{ending}").read_bytes()
        assert out.with_suffix(ending).read_bytes() == first, ending
    content = json.loads(locked.read_text())
    assert content["schedules"] and content["frozen"]
    assert sum(not group["kept"] for group in content["groups"]) == 1


def test_a_lock_made_again_from_a_lock_is_the_same(
    model: Path, locked: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again.json"
    api.optimize(model, Options(output=tmp_path / "x.onnx", lock=locked, save_lock=again))
    said, before = json.loads(again.read_text()), json.loads(locked.read_text())
    for content in (said, before):
        content["groups"] = {g["group"]: g["count"] for g in content["groups"] if g["kept"]}
    assert said == before


def test_names_and_trained_weights_do_not_matter(
    model: Path, locked: Path, tmp_path: Path
) -> None:
    renamed = onnx.load(model)
    old = {v.name for v in (*renamed.graph.input, *renamed.graph.output)}
    for node in renamed.graph.node:
        for side in (node.input, node.output):
            for i, name in enumerate(side):
                side[i] = name if name in old or not name else f"other/{name}"
        node.name = f"other/{node.name}"
    for tensor in renamed.graph.initializer:
        tensor.name = f"other/{tensor.name}"
        if tensor.raw_data and len(tensor.raw_data) > 4096:
            tensor.raw_data = tensor.raw_data[::-1][::-1][:-4] + b"\0\0\0\0"
    del renamed.graph.value_info[:]
    onnx.save(renamed, tmp_path / "renamed.onnx")
    report = api.optimize(tmp_path / "renamed.onnx", Options(lock=locked))
    assert report.improved and report.status == "passed"


def test_what_does_not_fit_is_refused(model: Path, locked: Path, tmp_path: Path) -> None:
    def refusal(path: Path, **options: Any) -> str:
        with pytest.raises(UsageError) as caught:
            api.optimize(path, Options(output=tmp_path / "y.onnx", **options))
        assert not (tmp_path / "y.onnx").exists()
        return str(caught.value)

    other = product(tmp_path / "p.onnx")
    assert "a model that computes something else" in refusal(other, lock=locked)
    assert "kernels here are for scalar;" in refusal(model, lock=locked, target="cpu:scalar")
    said = refusal(model, lock=locked, precision="bf16")
    assert "--precision contradicts" in said and "made with fp32" in said
    assert "there is no plan lock" in refusal(model, lock=tmp_path / "none.json")

    def spoilt(**changes: Any) -> Path:
        content = json.loads(locked.read_text()) | changes
        path = tmp_path / "spoilt.json"
        path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
        return path

    assert "(schema version 99, this" in refusal(model, lock=spoilt(schema_version=99))
    assert "missing required field `frozen`" in refusal(model, lock=spoilt(frozen=None))
    assert "is malformed" in refusal(model, lock=spoilt(machine={"gflops": 0.0}))
    assert "is malformed" in refusal(model, lock=spoilt(settings={"sharpness": 1}))
    assert "is malformed" in refusal(model, lock=spoilt(frozen=[3]))
    (tmp_path / "text.json").write_text("not JSON")
    assert "is not a plan lock" in refusal(model, lock=tmp_path / "text.json")
    groups = json.loads(locked.read_text())["groups"]
    kept = next(g for g in groups if g["kept"])
    changed = [g | {"count": g["count"] + (g == kept)} for g in groups]
    assert f"{kept['count'] + 1} × {kept['group']}" in refusal(model, lock=spoilt(groups=changed))


def test_a_lock_that_keeps_the_original_does(model: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    options = Options(keep="all", only=("rotary-embedding",), save_lock=plan)
    api.optimize(model, replace(options, output=tmp_path / "a.onnx"))
    report = api.optimize(model, Options(output=tmp_path / "b.onnx", lock=plan))
    assert not report.improved and str(plan) in report.reason
    assert (tmp_path / "b.onnx").read_bytes() == model.read_bytes()
