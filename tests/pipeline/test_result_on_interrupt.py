"""An interrupt leaves the first result that was verified and measured faster."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import tracea_graph as tg
from tests.pipeline.test_decision_cache import all_faster
from tests.tiny import product
from tracea_graph import Options, api
from tracea_graph.check.rewrite_selection import GroupSelection, GroupVerdict
from tracea_graph.cli import optimize_main
from tracea_graph.pipeline import decision_cache, evaluator, result_on_interrupt

pytestmark = pytest.mark.compiler


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of any size is worth a first result; all rewrites are faster."""
    monkeypatch.setattr(result_on_interrupt, "_SCREENED_US", 0.0)
    monkeypatch.setattr(evaluator, "select_faster", all_faster([]))
    # an equal test of an earlier suite run has decided too: names of such folders recur
    monkeypatch.setattr(decision_cache, "FOLDER", str(tmp_path / "decisions"))
    return product(tmp_path / "m.onnx", 64, 64)


def until(step: str) -> Callable[[str], None]:
    """A listener that interrupts at a step, once."""
    heard = list[str]()

    def listen(name: str) -> None:
        heard.append(name)
        if name == step and heard.count(step) == 1:
            raise KeyboardInterrupt

    return listen


@pytest.mark.parametrize("step", ["tuning", "timing", "confirming"])
def test_an_interrupt_leaves_the_first_result(model: Path, step: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        api.optimize(model, progress=until(step))
    told = json.loads(model.with_name("m.tracea.json").read_text())
    assert told["outcome"] == "improved" and told["status"] == "passed"
    assert "interrupted: this is the first result" in told["warnings"][-1]
    assert len(told["levels"]) == 1 and told["timings"]
    found = tg.verify(model, model.with_name("m.tracea.onnx"))
    assert found.verification.status == "passed"


def test_it_is_not_what_the_next_run_applies(model: Path) -> None:
    options = Options(keep_on_interrupt=True)
    report = api.optimize(model, options, progress=until("tuning"))
    assert report.improved and len(report.levels) == 1
    report = api.optimize(model, options)
    assert len(report.levels) > 1 and "decided on" not in report.reason


def test_before_there_is_one_nothing_is_left(model: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        api.optimize(model, progress=until("timing a first candidate"))
    assert [path.name for path in model.parent.iterdir()] == ["m.onnx"]


def test_what_is_not_faster_is_no_first_result(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_faster(original: Path, groups: object, *args: object, **named: object) -> object:
        verdicts = tuple(GroupVerdict(g, False, "slower") for g in groups)  # type: ignore[attr-defined]
        return GroupSelection(frozenset(), verdicts, {}, None)

    monkeypatch.setattr(evaluator, "select_faster", none_faster)
    with pytest.raises(KeyboardInterrupt):
        api.optimize(model, progress=until("tuning"))
    assert [path.name for path in model.parent.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize(("more", "code"), [((), 130), (("--keep-on-interrupt",), 0)])
def test_the_command_says_so(
    model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    more: tuple[str, ...],
    code: int,
) -> None:
    def interrupt(*args: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tracea_graph.pipeline.candidate_models.tune", interrupt)
    assert optimize_main([str(model), *more]) == code
    out, err = capsys.readouterr()
    assert "wrote" in out and "first result, verified: at least 1.00× as fast, 2.00×" in err
    assert err.endswith("interrupted: the first verified result was kept\n")
