"""Reports as text, JSON and HTML."""

from __future__ import annotations

from tracea_graph.views.html import report_page
from tracea_graph.views.report import GroupRow, Report, RuleRow, TimingRow
from tracea_graph.views.text import render_report

__all__ = ["GroupRow", "Report", "RuleRow", "TimingRow", "render_report", "report_page"]
