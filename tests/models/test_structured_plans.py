"""Plans of models with several kinds of structure are the best that leaving out rules finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.regret import Variant, met
from models.structured import STRUCTURED, make_structured
from tracea_graph import Options
from tracea_graph.onnx_io import load
from tracea_graph.passes.sparse.zero_structure import WeightScan
from tracea_graph.pipeline.planning import Planner
from tracea_graph.policy import CostModel, Machine
from tracea_graph.rewrite import DecisionTrace

STRUCTURE = frozenset(
    ("dead-channels", "low-rank-exact", "block-sparse-gemm", "unstructured-sparse-gemm")
)
WORST = 1.005
"""How much slower than the best variant a plan may be by prediction."""


class Plans:
    """Plans of one model without some rules, from one analysis of its weights."""

    def __init__(self, path: Path) -> None:
        self.graph, self.scan = load(path).graph, WeightScan()

    def __call__(self, skip: frozenset[str] = frozenset()) -> tuple[float, DecisionTrace]:
        """Return the predicted µs and the trace."""
        options, cost = Variant(skip).options(Options()), CostModel(Machine(), {})
        planner = Planner(self.graph, options, {}, cost=cost, scan=self.scan)
        graph, trace = (plan := planner.plan()).graph, plan.trace
        return sum(cost(graph, region) for region in graph.regions()), trace


@pytest.mark.parametrize("name", STRUCTURED)
def test_no_rule_for_structure_is_better_left_out(name: str, tmp_path: Path) -> None:
    plans = Plans(make_structured(name, tmp_path))
    default, trace = plans()
    fired = STRUCTURE & trace.applied().keys()
    skips = [frozenset((rule,)) for rule in fired] + [p for p in met(trace) if p <= fired]
    assert fired
    assert default <= WORST * min(plans(skip)[0] for skip in skips)


def test_few_dead_channels_are_combined_with_blocks_and_rank(tmp_path: Path) -> None:
    """Dropping 0.5 % of the channels first once precluded the factors of the second matrix."""
    applied = Plans(make_structured("few-dead", tmp_path))()[1].applied()
    assert applied["low-rank-exact"] == 1 and applied["block-sparse-gemm"] == 1
