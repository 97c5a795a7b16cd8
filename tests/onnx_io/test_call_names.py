"""Which original nodes each kernel call of a program computes, as metadata of a node."""

from __future__ import annotations

import pytest

from tracea_graph.onnx_io.kernel_call_origins import decode_calls, encode_calls

NAMES = ("a", "b", "c", "d", "e;,-")


def test_names_stand_once_and_calls_are_ranges() -> None:
    calls = (("a", "b", "c"), (), ("e;,-",), ("a", "c"))
    text = encode_calls(NAMES, calls)
    assert text == "0-2;;4;0,2"
    assert decode_calls(NAMES, text) == calls


@pytest.mark.parametrize("text", ["", "9", "x", "-1", "0;7-8"])
def test_text_that_does_not_fit_names_nothing(text: str) -> None:
    assert decode_calls(NAMES, text) == ()
