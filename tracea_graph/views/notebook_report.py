"""The report of an optimization, which displays itself in a notebook."""

from __future__ import annotations

from dataclasses import dataclass

from tracea_graph.views.optimization_report_page import report_fragment
from tracea_graph.views.report_record import ReportRecord

__all__ = ["Report"]


@dataclass
class Report(ReportRecord):
    __doc__ = ReportRecord.__doc__

    def _repr_html_(self) -> str:
        return report_fragment(self)
