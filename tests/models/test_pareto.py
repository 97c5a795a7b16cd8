"""The table of error against time: its rows, and how it measures."""

from __future__ import annotations

from typing import Any

import numpy as np

from models.pareto import ROWS, cpu_ms, one_sentence
from tracea_graph.options import Options


def test_rows_have_options_and_names_of_their_own() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        Options(**row.options)
    assert {row.options.get("precision", "fp32") for row in ROWS} >= {
        "fp32", "bf16", "int8", "int4-weights",
    }  # fmt: skip


class Session:
    """Counts its runs."""

    runs = 0

    def run(self, outputs: Any, feed: dict[str, Any]) -> None:
        assert feed["input_ids"].shape == (1, 128) and np.all(feed["attention_mask"] == 1)
        self.runs += 1


def test_sessions_run_in_turn() -> None:
    sessions = {"a": Session(), "b": Session()}
    assert cpu_ms(sessions, 5).keys() == sessions.keys()
    assert [s.runs for s in sessions.values()] == [8, 8]
    assert one_sentence()["token_type_ids"].sum() == 0
