"""The report as HTML: a self-contained page, or the part of it a notebook shows."""

from __future__ import annotations

from functools import cache
from importlib import resources

import jinja2

from tracea_graph.views.report import Report, with_folder

__all__ = ["report_page", "report_part"]


def report_page(*reports: Report) -> str:
    """One page without scripts or outside resources; every string of a model is escaped."""
    return _template().render(reports=reports, page=True)


def report_part(report: Report) -> str:
    """The same without the frame of a document."""
    return _template().render(reports=(report,), page=False)


@cache
def _template() -> jinja2.Template:
    text = resources.files("tracea_graph.views").joinpath("report.html.jinja").read_text("utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["as_path"] = with_folder
    return environment.from_string(text)
