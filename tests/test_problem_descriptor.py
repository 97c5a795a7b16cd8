"""Problems as text: what is accepted, and what an error says."""

from __future__ import annotations

import pytest

from tracea_graph import ProblemDescriptor
from tracea_graph.errors import UsageError


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
        ("gem:1x2x3", "no kind of problem 'gem'; did you mean gemm?"),
        ("pool:1x2", "the kinds are gemm, conv"),
        ("gemm", "no problem such as gemm:128x768x3072"),
        ("gemm:128x768", "gemm:MxNxK takes 3 sizes, not 2"),
        ("gemm:128x768xK", "'K' in 'gemm:128x768xK' is no size"),
        ("gemm:128xx768", "a size is missing"),
        ("gemm:0x2x3", "M of gemm is between 1 and"),
        ("gemm:1x2x3,bais=1", "gemm has no setting 'bais'; did you mean bias?"),
        ("gemm:1x2x3,bias", "'bias' in 'gemm:1x2x3,bias' is not NAME=VALUE"),
        ("gemm:1x2x3,epilogue=rleu", "no epilogue 'rleu'; did you mean relu?"),
        ("conv:1x2x3x4x5x6,stride=0", "stride of conv is a number of at least 1, not 0"),
        ("conv:1x2x3x4x5x6,stride=two", "stride of conv is a number of at least 1, not 'two'"),
    ],
)
def test_errors_name_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        ProblemDescriptor.parse(text)
    assert said in str(error.value)
