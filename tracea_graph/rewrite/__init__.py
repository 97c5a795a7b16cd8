"""Match patterns, propose rewrites and schedule them by predicted gain."""

from __future__ import annotations

from tracea_graph.rewrite.decision_trace import DecisionTrace, TraceEntry
from tracea_graph.rewrite.pass_result_cache import PassResultCache
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
from tracea_graph.rewrite.scheduler import constant_values, schedule_rewrites

__all__ = [
    "Cost",
    "DecisionTrace",
    "Made",
    "Match",
    "Miss",
    "OpBuilder",
    "Pass",
    "PassResultCache",
    "PatternPass",
    "Phase",
    "Price",
    "Proposal",
    "Rewrite",
    "Rule",
    "RulePass",
    "SchedulerLimits",
    "TraceEntry",
    "constant_number",
    "constant_values",
    "match",
    "schedule_rewrites",
]
