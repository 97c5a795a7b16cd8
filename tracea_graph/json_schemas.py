"""JSON Schemas of all kinds of documents, published in ``docs/schema``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tracea_graph.hardware.health_report import Health
from tracea_graph.json_documents import json_schema_of
from tracea_graph.pipeline.plan_lock import LockContent
from tracea_graph.policy import KernelPlan
from tracea_graph.toolchain import LibraryManifest
from tracea_graph.views import Report
from tracea_graph.views.bench import BenchReport
from tracea_graph.views.explain import Explanation
from tracea_graph.views.kept_kernels_record import Retuned
from tracea_graph.views.serving import ServingReport
from tracea_graph.views.shape_check import ShapeReport
from tracea_graph.views.sweep import SweepPoint
from tracea_graph.views.tuning_json import CachedResult, TunedReport
from tracea_graph.views.verify import VerifyReport

__all__ = ["DOCUMENTS", "document_schema"]

DOCUMENTS: Mapping[str, Any] = MappingProxyType(
    {
        "bench": BenchReport,
        "cache": CachedResult,
        "doctor": Health,
        "explain": Explanation,
        "kernel": KernelPlan,
        "lock": LockContent,
        "manifest": LibraryManifest,
        "report": Report,
        "retune": Retuned,
        "shapes": ShapeReport,
        "serving": ServingReport,
        "sweep": SweepPoint,
        "tune": TunedReport,
        "verify": VerifyReport,
    }
)
"""The record of each document.

``report`` is what ``tracea-optimize --json`` prints and ``model.tracea.json`` holds; ``manifest``
is a part of it.  With ``--json``, ``tracea doctor OP`` prints ``kernel``, ``tracea inspect
--check`` prints ``shapes``, and ``tracea bench --sessions`` prints ``serving``.  ``lock`` is the
file of ``--save-lock``.  Each other document is what the command of its name prints with
``--json``; ``cache``, ``sweep`` and ``tune`` are items of the list that is printed.
"""


def document_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a document.  Raises KeyError for names not in DOCUMENTS."""
    return json_schema_of(DOCUMENTS[name])
