"""Sequences and optional values as inputs: made up, fed, and compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.check.tiny_models import save
from tracea_graph import Options
from tracea_graph.check.verify_outputs import verify
from tracea_graph.onnx_io import load
from tracea_graph.pipeline.model_inputs import gather_inputs

SEQUENCE = """g (seq(float[N,4]) s, int64 i) => (float[N,4] y, seq(float[N,4]) t) {
    x = SequenceAt(s, i)  y = Relu(x)  t = SequenceInsert(s, y) }"""
WORDS = """g (seq(string[2]) s, string[2] w) => (seq(string[2]) t) { t = SequenceInsert(s, w) }"""
OPTIONAL = """g (optional(float[N,4]) o) => (float[N,4] y) {
    x = OptionalGetElement(o)  y = Relu(x) }"""


@pytest.mark.parametrize("text", [SEQUENCE, WORDS, OPTIONAL])
def test_containers_are_fed_and_compared(tmp_path: Path, text: str) -> None:
    path = save(tmp_path, "a.onnx", text)
    feeds = gather_inputs(load(path), Options()).verification
    found = verify(path, path, None, feeds)
    assert found.status == "passed", found.sentence


def test_a_wrong_sequence_fails(tmp_path: Path) -> None:
    path = save(tmp_path, "a.onnx", SEQUENCE)
    other = save(tmp_path, "b.onnx", SEQUENCE.replace("Relu", "Abs"))
    feeds = gather_inputs(load(path), Options()).verification
    found = verify(path, other, None, feeds)
    assert found.status == "failed" and ("'y'" in found.sentence or "'t[" in found.sentence)
