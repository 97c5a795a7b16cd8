"""The report as a self-contained HTML page."""

from __future__ import annotations

from functools import cache
from importlib import resources

import jinja2

from tracea_graph.views.report import Report

__all__ = ["report_page"]


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)


def report_page(report: Report) -> str:
    """One page without scripts or outside resources; every string of the model is escaped."""
    text = resources.files("tracea_graph.views").joinpath("report.html.jinja").read_text("utf-8")
    return _environment().from_string(text).render(report=report)
