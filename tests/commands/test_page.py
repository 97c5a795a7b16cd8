"""What the page of a report is made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import product
from tracea_graph import Options, api
from tracea_graph.commands.report_profiles import profile_report_models

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("highest_level")]


def test_kernels_of_a_result_have_facts_from_their_objects(tmp_path: Path) -> None:
    options = Options(target="cpu:scalar", keep="all", verify=False)
    report = api.optimize(product(tmp_path / "m.onnx"), options)
    found = profile_report_models(report, options)
    (row,) = report.kernel_calls
    facts = found.kernels[row.variant_id]
    assert (facts.op, facts.dtype, facts.level) == ("gemm", "f32", "scalar")
    assert facts.resources is not None and facts.resources.code_bytes > 100
