"""Layers are called by what their original nodes share."""

from __future__ import annotations

import pytest

from tracea_graph.views.layer_names import LayerNames, shorten

BERT = [
    "/bert/Unsqueeze",
    "/bert/embeddings/Gather",
    *(
        f"/bert/encoder/layer.{i}/{part}"
        for i in range(12)
        for part in ("attention/self/query/MatMul", "attention/self/key/MatMul", "output/Add")
    ),
]
NAMES = LayerNames(BERT)


@pytest.mark.parametrize(
    ("nodes", "name"),
    [
        ([], ""),
        (["/bert/embeddings/Gather"], "embeddings/Gather"),
        (BERT[2:4], "encoder/layer.0/attention/self"),
        (BERT[2:5], "encoder/layer.0"),
        (BERT[2:], "encoder/layer.0 … layer.11"),
        (BERT[2::3], "encoder/layer.0 … layer.11/attention/self/query"),
        (BERT[1:3], "embeddings … encoder"),
        (["/bert/Unsqueeze", *BERT[2:]], "encoder/layer.0 … layer.11"),
        (["/bert/Unsqueeze", "/bert/Cast"], "/bert/Unsqueeze … /bert/Cast"),
        (["/other/a/X", "/other/a/Y"], "other/a"),
    ],
)
def test_a_layer_goes_by_its_common_path(nodes: list[str], name: str) -> None:
    assert NAMES.of(nodes) == name


def test_names_without_paths_are_a_range() -> None:
    names = LayerNames(["n0", "n1", "n2"])
    assert names.of(["n0"]) == "n0"
    assert names.of(["n0", "n1", "n2"]) == "n0 … n2"


def test_odd_names_are_names() -> None:
    names = LayerNames(["", "/", "a//b", "<script>alert(1)</script>"])
    assert names.of([""]) == "" and names.of(["/"]) == "/"
    assert names.of(["a//b"]) == "a/b"
    assert names.of(["<script>alert(1)</script>"]) == "<script>alert(1)</script>"


def test_long_names_lose_their_middle() -> None:
    assert shorten("short", 10) == "short"
    short = shorten("encoder/layer.0/" + "x" * 300 + "/attention/self", 40)
    assert len(short) == 40 and short.startswith("encoder/") and short.endswith("/attention/self")


def test_a_block_is_the_numbered_part_that_nodes_are_in() -> None:
    names = LayerNames(["/net/h.0/attn/MatMul", "/net/h.1/mlp/act/Mul", "/net/head/Gemm"])
    assert names.block(["/net/h.1/mlp/act/Mul", "/net/h.1/ln/Add"]) == "h.1"
    assert names.block(["/net/head/Gemm"]) == "head/Gemm"
    assert names.block([]) == ""
