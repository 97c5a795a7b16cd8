"""The passes that run, in order, and why there."""

from __future__ import annotations

from tracea_graph.passes import (
    attention,
    channel_norms,
    elementwise,
    embedding,
    epilogue,
    gemm,
    matmul,
    projections,
    recognise,
    reductions,
)
from tracea_graph.rewrite import Phase, RulePass

__all__ = ["phases"]


def phases(plain_weights: bool = False) -> tuple[Phase, ...]:
    """Phases in order; within one, the scheduler decides by predicted gain.

    ``plain_weights`` leaves every matrix as the original stores it.
    """
    spellings = (*recognise.RULES, *channel_norms.RULES, *reductions.RULES)
    return (
        # spellings first: fusing half of one would hide it
        Phase("recognise", (*map(RulePass, spellings), attention.RecogniseAttention())),
        # products and look-ups become regions that others can join
        Phase(
            "lift",
            (
                gemm.LiftGemm(plain_weights),
                matmul.LiftMatMul(),
                embedding.LiftEmbedding(),
                gemm.AbsorbBias(),
                channel_norms.LiftBatchNorm(),
                reductions.LiftReduce(),
                reductions.LiftSoftmax(),
            ),
        ),
        Phase(
            "fuse",
            (
                embedding.MergeEmbeddings(),
                projections.MergeProjections(),
                epilogue.AbsorbEpilogue(),
                gemm.AbsorbNorm(),
                embedding.AbsorbEmbeddingNorm(),
                elementwise.MergeElementwise(),
            ),
        ),
        # last: a sum that a product could have taken must not go to the norm behind it
        Phase(
            "finish",
            (
                elementwise.AbsorbPrologue(),
                reductions.AbsorbBefore(),
                reductions.AbsorbAfter(),
                elementwise.LiftElementwise(),
                projections.MergeProducts(),
            ),
        ),
    )
