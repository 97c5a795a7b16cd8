"""Reports as text, JSON and HTML; graphs and programs as tables."""

from __future__ import annotations

from tracea_graph.views.notebook_report import Report
from tracea_graph.views.optimization_report_page import ReportProfiles, report_page
from tracea_graph.views.regions_and_programs import render_graph, render_stages
from tracea_graph.views.report_record import (
    CompressionRow,
    GroupRow,
    RuleRow,
    StorageRow,
    TimingRow,
    WeightRow,
    gain_in_words,
    rule_rows,
)
from tracea_graph.views.report_text import render_report, render_rules
from tracea_graph.views.terminal_tables import plain_text

__all__ = [
    "CompressionRow",
    "GroupRow",
    "Report",
    "ReportProfiles",
    "RuleRow",
    "StorageRow",
    "TimingRow",
    "WeightRow",
    "gain_in_words",
    "plain_text",
    "render_graph",
    "render_report",
    "render_rules",
    "render_stages",
    "report_page",
    "rule_rows",
]
