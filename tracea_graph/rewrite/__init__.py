"""Match patterns, propose rewrites and schedule them by predicted gain."""

from __future__ import annotations

from tracea_graph.rewrite.decision_trace import Trace, TraceEntry
from tracea_graph.rewrite.pass_result_cache import Memo
from tracea_graph.rewrite.pattern import (
    Made,
    Match,
    Miss,
    OpBuilder,
    Rewrite,
    Rule,
    constant_number,
    match,
)
from tracea_graph.rewrite.proposal import (
    Cost,
    Pass,
    PatternPass,
    Phase,
    Price,
    Proposal,
    RulePass,
    SchedulerLimits,
)
from tracea_graph.rewrite.scheduler import constant_values, schedule

__all__ = [
    "Cost",
    "Made",
    "Match",
    "Memo",
    "Miss",
    "OpBuilder",
    "Pass",
    "PatternPass",
    "Phase",
    "Price",
    "Proposal",
    "Rewrite",
    "Rule",
    "RulePass",
    "SchedulerLimits",
    "Trace",
    "TraceEntry",
    "constant_number",
    "constant_values",
    "match",
    "schedule",
]
