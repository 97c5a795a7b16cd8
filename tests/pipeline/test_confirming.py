"""Files that are found to be wrong when they are confirmed are written without the culprits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.check.tiny_models import save
from tests.pipeline.test_decision_cache import GAIN
from tracea_graph import Options, api
from tracea_graph.check.rewrite_selection import GroupSelection, GroupVerdict
from tracea_graph.check.verify_outputs import Verification
from tracea_graph.errors import VerifyError
from tracea_graph.kernels.cpu.backend import CpuBackend
from tracea_graph.pipeline import evaluator
from tracea_graph.reason_codes import Code

pytestmark = pytest.mark.compiler

TEXT = """g (float[N,32] x) => (float[N,64] y) {
    p = MatMul(x, v)  h = MatMul(p, w)  y = LayerNormalization<axis=-1>(h, scale) }"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of three regions; the first is said to be slower at first, all others faster."""
    monkeypatch.setattr(CpuBackend, "unmeasured", lambda self, levels: "")
    asked = list[int]()

    def select(
        original: Path, groups: Any, build: Any, *args: Any, **named: Any
    ) -> GroupSelection:
        slower = {g.key for g in groups if not asked and g.key.endswith("32x48")}
        asked.append(len(groups))
        verdicts = tuple(GroupVerdict(g, g.key not in slower, "measured") for g in groups)
        kept = frozenset(g.key for g in groups) - slower
        return GroupSelection(kept, verdicts, {(1, "default"): GAIN}, build(frozenset(slower)))

    monkeypatch.setattr(evaluator, "select_faster", select)
    rng = np.random.default_rng(0)
    v, w = (rng.standard_normal(s).astype(np.float32) for s in ((32, 48), (48, 64)))
    return save(tmp_path, "m.onnx", TEXT, v=v, w=w, scale=np.ones(64, np.float32))


def plain_values(path: Path) -> set[str]:
    """Values that standard operators compute."""
    return {n.output[0] for n in onnx.load(path).graph.node if not n.domain}


def wrong_without(
    monkeypatch: pytest.MonkeyPatch, others: set[str], status: str = "failed"
) -> None:
    """Let each candidate fail with ``p``, but none of ``others``, from a plain operator."""
    compare = evaluator.compare_with_reference

    def fail_some(known: Any, candidate: Path, *args: Any, **more: Any) -> Verification:
        found = compare(known, candidate, *args, **more)
        if "p" in (plain := plain_values(candidate)) and not plain & others:
            return replace(found, status=status, sentence="inner value 'h' with N=1: it is wrong")
        return found

    monkeypatch.setattr(evaluator, "compare_with_reference", fail_some)


OPTIONS = Options(
    target="cpu:scalar", skip=("cluster", "norm-prologue", "gemm-norm"), use_cache=False
)


def test_a_part_that_is_wrong_alone_is_dropped(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong_without(monkeypatch, {"h"})
    report = api.optimize(model, OPTIONS)
    assert report.improved and report.status == "passed"
    rows = {row.code: row for row in report.groups}
    assert rows[Code.OUT_OF_TOLERANCE].originals == ("h",)
    assert plain_values(report.output) == {"p", "h"}


def test_if_nothing_is_right_the_original_is_kept(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong_without(monkeypatch, set())
    report = api.optimize(model, OPTIONS)
    assert report.outcome == "kept original" and "without rewrites is wrong" in report.reason
    assert sorted(p.name for p in model.parent.iterdir()) == [
        "m.onnx", "m.tracea.json", "m.tracea.onnx"
    ]  # fmt: skip


def test_an_inconclusive_confirmation_publishes_nothing(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong_without(monkeypatch, set(), "inconclusive")
    with pytest.raises(VerifyError, match="the written result is wrong: inner value 'h'"):
        api.optimize(model, OPTIONS)
    assert [p.name for p in model.parent.iterdir()] == ["m.onnx"]
