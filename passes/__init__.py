"""The passes that run, in order, and why there."""

from __future__ import annotations

from tracea_graph.passes import (
    attention,
    attention_nodes,
    elementwise,
    embedding,
    gemm,
    projections,
    recognise,
)
from tracea_graph.rewrite import Phase, RulePass

__all__ = ["phases"]


def phases(plain_weights: bool = False) -> tuple[Phase, ...]:
    """Phases in order; within one, the scheduler decides by predicted gain.

    ``plain_weights`` leaves every matrix as the original stores it.
    """
    return (
        # spellings first: fusing half of one would hide it
        Phase(
            "recognise",
            (
                *map(RulePass, recognise.RULES),
                attention.RecogniseAttention(),
                attention_nodes.LiftAttention(),
            ),
        ),
        # products and look-ups become regions that others can join
        Phase(
            "lift", (gemm.LiftGemm(plain_weights), embedding.LiftEmbedding(), gemm.AbsorbBias())
        ),
        Phase(
            "fuse",
            (
                embedding.MergeEmbeddings(),
                projections.MergeProjections(),
                gemm.AbsorbEpilogue(),
                gemm.AbsorbNorm(),
                embedding.AbsorbEmbeddingNorm(),
                elementwise.MergeElementwise(),
            ),
        ),
        # last: a sum that a product could have taken must not go to the norm behind it
        Phase("finish", (elementwise.AbsorbPrologue(), elementwise.LiftElementwise())),
    )
