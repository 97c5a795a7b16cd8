"""What a default run goes through: nothing that decides may stand beside it.

``COUNTED`` lists the functions that have to be called; a subsystem that joins the default run gets
a line there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.make import make
from models.structured import make_structured
from tracea_graph.api import PLANNING, optimize
from tracea_graph.kernels.cpu import kernel_catalog
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.variants import VARIANTS
from tracea_graph.options import Options
from tracea_graph.passes import WEIGHT_DEPENDENT
from tracea_graph.pipeline.library_builder import LibraryBuilder
from tracea_graph.pipeline.output_files import paths_of_all
from tracea_graph.pipeline.result_assembly import Assembly
from tracea_graph.pipeline.stages import PipelineRun
from tracea_graph.pipeline.step_timer import Deadline, StepTimer
from tracea_graph.policy import PolicyEngine
from tracea_graph.rewrite import scheduler
from tracea_graph.target import target_of
from tracea_graph.ttg import TTGBuilder
from tracea_graph.tuning import Tuner

ZOO = ("tiny-bert", "tagger", "mobilenetv2")
SPARSE = ("few-dead", "ranks", "transformer")
COUNTED: dict[str, tuple[type, str]] = {
    "policy": (PolicyEngine, "decide"),
    "tuner": (Tuner, "run"),
}
"""The method that counts as a call of each subsystem, of every model."""
OF_STRUCTURE: dict[str, tuple[type, str]] = {
    "tile maps": (TTGBuilder, "build_active"),
    "alternatives": (scheduler._Run, "rollout"),
}
"""Those of models with structure in their weights."""
KNOWN = {kernel_catalog.variant_id(v) for v in VARIANTS} | {
    kernel_catalog.host_loop(schema.op) for schema in CALLS.values()
}


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    found = Counter[str]()

    def counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            found[name] += 1
            return method(*args, **more)

        return call

    for name, (owner, method) in (COUNTED | OF_STRUCTURE).items():
        monkeypatch.setattr(owner, method, counted(name, getattr(owner, method)))
    return found


def planned(source: Path, options: Options, folder: Path) -> Assembly:
    """The plan of a run, by the stages that ``optimize`` runs before it builds."""
    (paths,) = paths_of_all([source], None, False)
    timer = StepTimer(lambda step: None)
    libraries = LibraryBuilder(target_of(options.target, options.precision), options.environment)
    deadline = Deadline(options.budget, timer.spent)
    run = PipelineRun(source, paths, options, (), libraries, None, folder, None, timer, deadline)
    with run.open:
        for stage in PLANNING:
            stage(run)
    return run.assembly


@pytest.mark.parametrize("name", ZOO)
def test_planning_asks_the_policy_about_every_call(
    name: str, tmp_path: Path, counts: Counter[str]
) -> None:
    source = make(name, tmp_path, hollow=True)
    options = Options(skip=(*WEIGHT_DEPENDENT, "unstructured-sparse-gemm"), use_cache=False)
    assembly = planned(source, options, tmp_path / "scratch")
    calls = [call for item in assembly.placed for call in item.program.calls]
    decisions = list(assembly.decisions)
    assert assembly.placed and calls
    assert [call.name for call in calls] == [one.call for one in decisions]
    assert counts["policy"] >= len(calls)
    for call, one in zip(calls, decisions, strict=True):
        assert one.decision.variant_id in KNOWN
        assert one.decision.reasons and all(c.why for c in one.decision.others)
        assert call.schedules == one.decision.schedules


@pytest.mark.parametrize("name", SPARSE)
def test_zeros_are_planned_by_tile_maps_and_alternatives(
    name: str, tmp_path: Path, counts: Counter[str]
) -> None:
    assembly = planned(make_structured(name, tmp_path), Options(use_cache=False), tmp_path / "s")
    assert assembly.placed
    assert counts.keys() == {"policy", *OF_STRUCTURE}
    calls = [call.op for item in assembly.placed for call in item.program.calls]
    assert "gemm_block_sparse" in calls


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.parametrize("name", ZOO)
def test_a_default_run_goes_through_all_that_decides(
    name: str, tmp_path: Path, counts: Counter[str]
) -> None:
    report = optimize(make(name, tmp_path), Options(use_cache=False))
    assert counts.keys() >= COUNTED.keys()
    assert report.kernel_calls and {row.variant_id for row in report.kernel_calls} <= KNOWN
