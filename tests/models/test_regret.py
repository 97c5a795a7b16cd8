"""Regret: the default plan against plans without some of its rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from models import regret
from models.score import marks
from models.structured import STRUCTURED, make_structured
from tests.graphs import Net
from tracea_graph import Options
from tracea_graph.check.timing_statistics import PairedTimes, speed_ratio
from tracea_graph.rewrite import DecisionTrace


def mlp(folder: Path) -> Path:
    net = Net()
    x = net("Relu", net("Add", net("MatMul", net.input("x", 8, 64), net.weight(64, 64)), 1.0))
    net.save(path := folder / "mlp.onnx", net("MatMul", x, net.weight(64, 32)))
    return path


def test_rules_meet_where_both_were_applied_to_one_operator() -> None:
    trace = DecisionTrace()
    trace.add("p", "a", "x", "applied", "", 1.0, ("n1",))
    trace.add("p", "b", "y", "applied", "", 1.0, ("n1", "n2"))
    trace.add("p", "c", "z", "applied", "", 1.0, ("n2",))
    trace.add("p", "d", "z", "missed", "why", 0.0, ("n1",))
    assert regret.met(trace) == {frozenset("ab"), frozenset("bc")}


@pytest.mark.parametrize(("better", "loss"), [(1.0, 0.0), (0.5, 1.0), (2.0, 0.0)])
def test_a_loss_counts_if_its_bound_does(better: float, loss: float) -> None:
    found = speed_ratio(PairedTimes((1.0,) * 20, (better,) * 20))
    assert regret.Regret("m", "rule", (1.0,), (found,)).loss == loss


def test_an_uncertain_loss_is_none() -> None:
    found = speed_ratio(PairedTimes((1.0, 1.0) * 10, (0.5, 1.5) * 10))
    assert found.low < 1.0
    assert regret.Regret("m", "rule", (1.0,), (found,)).loss == 0.0


def test_a_loss_is_blamed_on_the_rule_whose_absence_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the candidate rules only one makes the plan slower."""
    path = make_structured("few-dead", tmp_path)
    monkeypatch.setattr(
        regret, "variants", lambda *_: (300.0, [(100.0, regret.Variant(frozenset("r")))])
    )
    found = regret.predicted(path, Options())
    assert (found.blame, found.loss) == ("r", pytest.approx(2.0))


def test_every_variant_is_another_plan(tmp_path: Path) -> None:
    found = regret.predicted(mlp(tmp_path), Options())
    assert found.tried > 5 and found.ratios[0].median >= 1.0


def test_the_table_goes_between_its_marks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, (begin, end) = tmp_path / "page.md", marks("predicted fp32", regret.TOOL)
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n", encoding="utf-8")
    arguments = [str(mlp(tmp_path)), "--predicted", "--write", str(page)]
    assert regret.main(arguments) == 0
    text = page.read_text("utf-8")
    assert "| mlp |" in text and "old" not in text and text.startswith("before\n")
    assert "| mlp |" in capsys.readouterr().out


def test_an_unknown_model_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert regret.main(["no-such-model", "--predicted"]) == 2
    assert "no-such-model" in capsys.readouterr().err


@pytest.mark.slow
def test_the_clock_compares_the_default_with_variants(tmp_path: Path) -> None:
    options = Options(keep="all", threads=(1,), verify=False)
    found = regret.measured(mlp(tmp_path), options, 1, 0.5)
    assert found.tried == 2 and len(found.ratios) == 1


@pytest.mark.parametrize("name", STRUCTURED)
def test_structured_models_are_what_their_names_say(name: str) -> None:
    model = STRUCTURED[name]()
    assert model.graph.output[0].type.tensor_type.HasField("shape")
