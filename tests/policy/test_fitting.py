"""Fitting the cost model's numbers: wrong ones are found again, right ones stay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models.fit import choices, median_error, predict
from models.fitting import fit, rechosen, repredicted
from models.make import make
from tracea_graph.policy.cost_coefficients import FILE, UNMEASURED, packaged_coefficients

STORED: dict[str, Any] = json.loads(
    (Path(__file__).parent / "measured_regions.json").read_text(encoding="utf-8")
)


def silent(words: str) -> None:
    """Nobody listens."""


def test_tables_are_stored_as_the_command_writes_them() -> None:
    assert FILE.read_text(encoding="utf-8") == packaged_coefficients().to_json()


def test_a_wrong_number_is_found_again(tmp_path: Path) -> None:
    path = make("minilm", tmp_path, hollow=True)
    wrong = packaged_coefficients().scaled("shares", "FusedGemm", 0.4)
    rows = [repredicted(p, wrong) for p in predict(STORED, "minilm", path)]
    chosen = [rechosen(c, wrong) for c in choices(STORED, "minilm", path)]
    found = fit(wrong, rows, chosen, silent)
    assert found.shares["FusedGemm"] == pytest.approx(
        packaged_coefficients().shares["FusedGemm"], rel=0.15
    )
    untouched = found.shares["FusedConv winograd4"]
    assert untouched == packaged_coefficients().shares["FusedConv winograd4"], (
        "MiniLM has no convolutions"
    )
    better = [repredicted(p, found) for p in rows]
    assert median_error(better) < 0.5 * median_error(rows)


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        ("minilm.bf16", {"FusedGemm vnni2"}),
        ("minilm.int16", {"FusedGemm int16"}),
        ("resnet50.bf16", {"FusedConv vnni2", "FusedConv winograd2_vnni2"}),
    ],
)
def test_shares_of_pairs_and_integers_are_measured(
    name: str, shares: set[str], tmp_path: Path
) -> None:
    """Each is what three stored regions or more depend on, and predicts them."""
    rows = predict(STORED, name, make(name.partition(".")[0], tmp_path, hollow=True))
    for share in shares:
        other = packaged_coefficients().scaled("shares", share, 0.5)
        moved = [p for p in rows if repredicted(p, other).us != p.us]
        assert len(moved) >= 3
        assert median_error(moved) < 0.2


def test_every_share_of_pairs_and_integers_says_where_it_comes_from() -> None:
    ends = ("vnni2", "int8", "int16", "f16", "nbits")
    paired = {n for n in packaged_coefficients().shares if n.endswith(ends)}
    assert paired == {
        *UNMEASURED, "FusedGemm vnni2", "FusedGemm int16", "FusedConv vnni2",
        "FusedConv winograd2_vnni2",
    }  # fmt: skip
