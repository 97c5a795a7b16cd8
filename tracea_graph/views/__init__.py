"""Reports as text, JSON and HTML; graphs and programs as tables."""

from __future__ import annotations

from tracea_graph.views.graph import render_graph, render_stages
from tracea_graph.views.report import (
    CompressionRow,
    GroupRow,
    Report,
    RuleRow,
    StorageRow,
    TimingRow,
    WeightRow,
    gain_of,
    report_page,
    rule_rows,
)
from tracea_graph.views.text import plain, render_report, render_rules

__all__ = [
    "CompressionRow",
    "GroupRow",
    "Report",
    "RuleRow",
    "StorageRow",
    "TimingRow",
    "WeightRow",
    "gain_of",
    "plain",
    "render_graph",
    "render_report",
    "render_rules",
    "render_stages",
    "report_page",
    "rule_rows",
]
