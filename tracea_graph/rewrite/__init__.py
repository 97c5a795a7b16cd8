"""Pattern matching, proposals and the priority scheduler."""

from __future__ import annotations

from tracea_graph.rewrite.pattern import Match, Miss, OpBuilder, Rule, constant_number, match
from tracea_graph.rewrite.scheduler import (
    Cost,
    Decision,
    Limits,
    Pass,
    Phase,
    Proposal,
    RulePass,
    Trace,
    schedule,
)

__all__ = [
    "Cost",
    "Decision",
    "Limits",
    "Match",
    "Miss",
    "OpBuilder",
    "Pass",
    "Phase",
    "Proposal",
    "Rule",
    "RulePass",
    "Trace",
    "constant_number",
    "match",
    "schedule",
]
