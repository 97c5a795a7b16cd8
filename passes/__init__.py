"""The passes that run, in order, and why there."""

from __future__ import annotations

from tracea_graph.passes import (
    attention,
    attention_nodes,
    batch_norm,
    channel_norm,
    conv,
    elementwise,
    embedding,
    epilogue,
    gemm,
    matmul,
    padding,
    pool,
    projections,
    recognise,
    transposed,
    trunk,
)
from tracea_graph.passes.precision import GemmInBf16
from tracea_graph.rewrite import Pass, Phase, RulePass

__all__ = ["CONNECT", "phases"]

CONNECT = "connect"
"""The phase that makes one program of neighbouring regions."""


_SPELLINGS: tuple[Pass, ...] = (
    *map(RulePass, recognise.RULES),
    attention.RecogniseAttention(),
    attention_nodes.LiftAttention(),
    channel_norm.RecogniseChannelNorm(),
)


def phases(plain_weights: bool = False, precision: str = "fp32") -> tuple[Phase, ...]:
    """Phases in order; within one, the scheduler decides by predicted gain.

    ``plain_weights`` leaves every matrix as the original stores it; ``precision`` is ``fp32``,
    ``bf16`` or ``bf16-weights``.
    """
    exact = (
        # spellings first: fusing half of one would hide it
        Phase("recognise", _SPELLINGS),
        # products and look-ups become regions that others can join
        Phase(
            "lift",
            (
                gemm.LiftGemm(plain_weights),
                matmul.LiftMatMul(),
                embedding.LiftEmbedding(),
                gemm.AbsorbBias(),
                conv.LiftConv(plain_weights),
                conv.AbsorbPad(),
                transposed.LiftTransposed(plain_weights),
                batch_norm.AbsorbBatchNorm(),
                pool.LiftPool(),
                pool.AbsorbFlatten(),
            ),
        ),
        Phase(
            "fuse",
            (
                embedding.MergeEmbeddings(),
                projections.MergeProjections(),
                epilogue.AbsorbEpilogue(),
                gemm.AbsorbNorm(),
                batch_norm.LiftBatchNorm(),
                conv.AbsorbConvEpilogue(),
                padding.LiftPad(),
                embedding.AbsorbEmbeddingNorm(),
                elementwise.MergeElementwise(),
            ),
        ),
        # last: a sum that a product could have taken must not go to the norm behind it
        Phase(
            "finish",
            (
                elementwise.AbsorbPrologue(),
                elementwise.LiftElementwise(),
                projections.MergeProducts(),
            ),
        ),
        Phase("transform", (conv.TransformFilters(),)),
        # whole at last: what lies between the steps of one program lies as its kernels like it
        Phase(CONNECT, (trunk.ConnectTrunk(),)),
    )
    if precision == "fp32":
        return exact
    # regions are what they will be: only their numbers change
    return (*exact, Phase("precision", (GemmInBf16(precision),)))
