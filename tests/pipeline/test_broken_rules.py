"""A rule that raises costs that rule: the run says so and goes on without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.graphs import Net
from tracea_graph import Options, api
from tracea_graph.cli.main import main, optimize_main
from tracea_graph.errors import RuleError
from tracea_graph.passes import CLUSTERING
from tracea_graph.passes.pointwise.gemm_epilogue import GemmEpilogue
from tracea_graph.rewrite import Proposal
from tracea_graph.target import BACKENDS, Backend
from tracea_graph.ttg import Region, TileGraph

RULE = GemmEpilogue.name
SENTENCE = f"rule {RULE!r} is left out: it raised KeyError: 'lost' (a bug; -v shows where)"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    net = Net()
    product = net("MatMul", net.input("x", 6, 24), net.weight(24, 32))
    net.graph(net("Tanh", product))
    path = tmp_path / "m.onnx"
    onnx.save(net.model, path)
    return path


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACEA_STRICT")


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule raises where it would propose."""

    def propose(self: GemmEpilogue, graph: TileGraph, region: Region) -> Iterator[Proposal]:
        yield from ()
        if region.op == "Tanh":
            raise KeyError("lost")

    monkeypatch.setattr(GemmEpilogue, "propose", propose)


@pytest.fixture
def unlowered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the rule makes cannot be lowered."""
    kind = type(BACKENDS[0])
    lower = kind.lower

    def refuse(backend: Backend, graph: TileGraph, region: Region) -> object:
        if region.rule == RULE:
            raise KeyError("lost")
        return lower(backend, graph, region)

    monkeypatch.setattr(kind, "lower", refuse)


@pytest.mark.compiler
@pytest.mark.parametrize("how", ["broken", "unlowered"])
@pytest.mark.usefixtures("lenient")
def test_the_run_goes_on_without_it(how: str, model: Path, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(how)
    report = api.optimize(model, Options(keep="all", target="cpu:scalar", skip=CLUSTERING))
    assert report.improved and report.status == "passed"
    assert [w for w in report.warnings if RULE in w] == [SENTENCE]
    assert RULE not in {group.rule for group in report.groups}
    assert {row.verdict for row in report.rules if row.rule == RULE} == {"raised"}
    (fault,) = report.faults
    assert "Traceback" in fault and "KeyError: 'lost'" in fault
    x = {"x": np.linspace(-1, 1, 144, dtype=np.float32).reshape(6, 24)}
    (found,), (wanted,) = (api.session(p).run(None, x) for p in (report.output, model))
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.usefixtures("lenient", "broken")
def test_the_command_shows_where_if_asked(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert optimize_main([str(model), "--until", "lower"]) == 0
    told = capsys.readouterr().err
    assert told == f"warning: {SENTENCE}\n"
    assert optimize_main([str(model), "--until", "lower", "-v"]) == 0
    told = capsys.readouterr().err
    assert "Traceback" in told and "in propose" in told
    assert main(["explain", str(model)]) == 0
    assert "KeyError: 'lost'" in capsys.readouterr().out


@pytest.mark.usefixtures("broken")
def test_strictly_it_ends_the_run(model: Path) -> None:
    with pytest.raises(RuleError, match=RULE):
        api.stage_results(model, "passes", Options(keep="all"))
