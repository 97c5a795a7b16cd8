"""onnx's nets without weights through ``--keep all``: all equal, all with kernels.

By default half of the small ones, for the highest level, with their trunks kept apart so that
inner values can be compared; slow runs do so with all of them and for all levels, and write them
as any user's are.  Their weights are constants made at load, so outputs say little: some inner
values that both models have are compared too.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.highest import highest_level
from tests.suite.node_tests import light_models, same
from tracea_graph import Options, Report, api
from tracea_graph.check.worker_process import Array, Worker

pytestmark = pytest.mark.compiler

COUNT, INNER = 9, 6
HEAVY = ("light_bvlc_alexnet", "light_vgg19", "light_zfnet512")
"""Their weights take hundreds of MB once they are made."""
WHOLE = ("light_inception_v2", "light_resnet50", "light_squeezenet")
"""Those whose trunks default runs do not keep apart."""


def chosen(name: str) -> list[Path]:
    """The nets of one kind: ``apart``, ``whole``, ``heavy``, or ``small``, all but the heavy."""
    wanted = {
        "small": lambda stem: stem not in HEAVY,
        "heavy": HEAVY.__contains__,
        "whole": WHOLE.__contains__,
        "apart": lambda stem: stem not in HEAVY + WHOLE,
    }
    return [m for m in light_models() if wanted[name](m.stem)]


def kinds(default: str, *slow: str) -> list[object]:
    return [default, *(pytest.param(kind, marks=pytest.mark.slow) for kind in slow)]


@pytest.fixture(scope="module", params=kinds("apart", "small", "heavy"))
def reports(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[Report]:
    models = chosen(request.param)
    # programs of many steps would hide the inner values
    options = Options(
        tmp_path_factory.mktemp("light"), keep="all", skip=("cluster-conv", "cluster")
    )
    with highest_level() if request.param == "apart" else nullcontext():
        outcomes = list(api.optimize_many(models, options))
    assert not [outcome for outcome in outcomes if outcome.error]
    return [outcome.report for outcome in outcomes if outcome.report]


def test_there_are_nine() -> None:
    assert len(light_models()) == COUNT
    assert len(chosen("whole")) == len(chosen("apart")) == len(chosen("heavy")) == COUNT // 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["whole", "small"])
def test_most_become_one_program(kind: str, tmp_path: Path) -> None:
    models = chosen(kind)
    with highest_level() if kind == "whole" else nullcontext():
        outcomes = list(api.optimize_many(models, Options(tmp_path, keep="all")))
    found = [outcome.report for outcome in outcomes if outcome.report]
    assert len(found) == len(models) and all(report.status == "passed" for report in found)
    assert sorted(report.kernels for report in found)[len(found) // 2] <= 4


def test_all_are_rewritten_and_verified(reports: list[Report]) -> None:
    assert all(report.kernels > 5 and report.status == "passed" for report in reports)
    assert len({report.domain for report in reports}) == 1


def test_all_answer_as_the_originals(reports: list[Report]) -> None:
    with Worker() as worker:
        wrong = {report.input: _difference(worker, report) for report in reports}
    assert not {model: found for model, found in wrong.items() if found}


def _difference(worker: Worker, report: Report) -> str:
    models = [onnx.load(p, load_external_data=False) for p in (report.input, report.output)]
    before, after = ({v for n in m.graph.node for v in n.output} for m in models)
    shared = sorted((before & after) - _constants(models[0]))
    extra = shared[:: max(1, len(shared) // INNER)]
    found: list[dict[str, Array]] = []
    for path, library in ((report.input, None), (report.output, report.library)):
        place = Path(library) if library else None
        worker.open("net", Path(path), place, level="off", extra=extra)
        found.append(worker.run("net", _picture(models[0])))
        worker.clear()
    assert sum(np.ptp(found[0][name]) > 0 for name in extra) >= INNER // 2, report.input
    return same(found[1], found[0])


def _constants(model: onnx.ModelProto) -> set[str]:
    """Values that do not depend on the inputs."""
    found = {t.name for t in model.graph.initializer}
    for node in model.graph.node:
        if all(v in found for v in node.input):
            found |= set(node.output)
    return found


def _picture(model: onnx.ModelProto) -> dict[str, Array]:
    stored = {t.name for t in model.graph.initializer}
    (image,) = (v for v in model.graph.input if v.name not in stored)
    shape = [d.dim_value for d in image.type.tensor_type.shape.dim]
    return {image.name: np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
