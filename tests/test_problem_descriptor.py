"""Problems as text: what is accepted, and what an error says."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tracea_graph import Options, ProblemDescriptor
from tracea_graph.commands.autotuner import tune_problem
from tracea_graph.errors import UsageError
from tracea_graph.tuning import Case, TuningResult, Workload
from tracea_graph.tuning.tuning_problem import default_schedule


def test_sizes_and_settings_have_names() -> None:
    conv = ProblemDescriptor.parse("conv:1x64x56x48x128x3,stride=2,epilogue=relu")
    assert conv == ProblemDescriptor(
        "conv", (1, 64, 56, 48, 128, 3), {"stride": 2, "epilogue": "relu"}
    )
    assert (conv["height"], conv["filters"], conv["groups"], conv["epilogue"]) == (
        56, 128, 1, "relu",
    )  # fmt: skip
    assert ProblemDescriptor.parse(str(conv)) == conv


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gem:1x2x3", "the kind of problem is unknown: 'gem'; did you mean gemm?"),
        ("pool:1x2", "the kinds are gemm, sparse"),
        ("gemm", "no problem such as gemm:128x768x3072"),
        ("gemm:128x768", "gemm:MxNxK takes 3 sizes, not 2"),
        ("gemm:128x768xK", "'K' in 'gemm:128x768xK' is no size"),
        ("gemm:128xx768", "a size is missing"),
        ("gemm:0x2x3", "M of gemm must be from 1 to"),
        ("gemm:1x2x3,bais=1", "gemm has no setting 'bais'; did you mean bias?"),
        ("gemm:1x2x3,bias", "'bias' in 'gemm:1x2x3,bias' is not NAME=VALUE"),
        ("gemm:1x2x3,epilogue=rleu", "no epilogue 'rleu'; did you mean relu?"),
        ("conv:1x2x3x4x5x6,stride=0", "stride of conv must be a number of at least 1, not 0"),
        ("sparse:1x2x3,zeros=100", "zeros of sparse must be a number between 1 and 99, not 100"),
        (
            "conv:1x2x3x4x5x6,stride=two",
            "stride of conv must be a number of at least 1, not 'two'",
        ),
    ],
)
def test_errors_name_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        ProblemDescriptor.parse(text)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("gemm:16x64x128", {"gemm"}),
        ("sparse:16x256x256,zeros=90", {"gemm_block_sparse"}),
        ("int8:64x128x256", {"gemm_int8"}),
        ("int4:4x256x256,block=64", {"gemm_nbits"}),
        ("attention:1x5x64x64x32,causal=1", {"attention"}),
        ("chain:256x512,operands=3", {"elementwise"}),
        ("depthwise:1x64x28x28x3", {"depthwise"}),
    ],
)
def test_every_kind_is_a_call_that_takes_a_schedule(
    text: str, calls: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def untuned(loads: Iterable[Workload], *_: object, **more: object) -> list[TuningResult]:
        cases = (Case(load.problem, rows) for load in loads for rows in load.rows)
        return [TuningResult(case, default_schedule(case), 1.0, "default") for case in cases]

    monkeypatch.setattr("tracea_graph.commands.tune.tune", untuned)
    found = tune_problem(ProblemDescriptor.parse(text), Options())
    assert {str(t.case.problem).split()[0] for t in found.tuned.tuned} == calls
