"""The passes that run before a target is asked, in order, and why there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from tracea_graph.config import Window
from tracea_graph.passes import partition, recurrent
from tracea_graph.passes.attention import attention, rotary, unflatten_heads
from tracea_graph.passes.attention import nodes as attention_nodes
from tracea_graph.passes.convolution import (
    batch_norm,
    branches,
    channels_first,
    conv,
    padding,
    pool,
    resize,
    shuffle,
    transposed,
    volumes,
)
from tracea_graph.passes.movement import (
    embedding,
    grids,
    hoisting,
    movement,
    picking,
    seams,
    sharing,
    taking,
)
from tracea_graph.passes.pointwise import (
    channel_norms,
    channels_last,
    elementwise,
    epilogue,
    recognise,
    reductions,
)
from tracea_graph.passes.products import gemm, matmul, projections, unflatten_rows
from tracea_graph.passes.sparse.channels import PruneChannels
from tracea_graph.passes.sparse.compressed import PRUNED, Compressed
from tracea_graph.passes.sparse.dead_channels import DEAD_CHANNELS, DeadChannels
from tracea_graph.passes.sparse.exact_rank import LOW_RANK, LOW_RANK_EXACT
from tracea_graph.passes.sparse.factored import LowRankConv, LowRankEmbedding
from tracea_graph.passes.sparse.heads import PruneHeads
from tracea_graph.passes.sparse.structure import WeightScan
from tracea_graph.passes.spelling import spelling
from tracea_graph.rewrite import Phase, RulePass

__all__ = [
    "CONNECT",
    "FORMS",
    "JOINING",
    "MOVEMENT",
    "UNCHANGED",
    "WEIGHED",
    "Request",
    "phases",
]

CONNECT = "connect"
"""The phase that makes one program of neighbouring regions."""
JOINING = (partition.ClusterConv.name, partition.Cluster.name, partition.ClusterAll.name)
"""Rules that make one program of several regions."""
FORMS = (
    DEAD_CHANNELS, LOW_RANK_EXACT, *LOW_RANK, *PRUNED, "block-sparse-gemm",
    "unstructured-sparse-gemm", "window-attention",
)  # fmt: skip
"""Rules that give a region another form: without them it is there in its plain one."""
WEIGHED = (DEAD_CHANNELS, LOW_RANK_EXACT, "block-sparse-gemm")
"""Rules that depend on the numbers in weights."""

UNCHANGED: Mapping[str, Compressed] = MappingProxyType({})
"""Every matrix stays what it is."""


@dataclass(frozen=True)
class Request:
    """What a plan is asked for.

    ``precision`` is one of ``config.PRECISIONS``; without ``prepack`` every matrix stays as the
    original stores it; ``windows`` are for attention; ``compressed`` has what replaces matrices,
    by the names these are stored under; ``scan`` what an earlier plan found in weights.
    """

    precision: str = "fp32"
    prepack: bool = True
    windows: Sequence[Window] = ()
    compressed: Mapping[str, Compressed] = field(default_factory=lambda: UNCHANGED)
    scan: WeightScan = field(default_factory=WeightScan)


_SPELL = Phase("spell", (spelling.Decompose(),))
"""What is several operators in one is written out, for the rules to see."""

_HEADS = Phase("heads", (unflatten_heads.UnflattenHeads(),))
"""Before anything is recognised: with heads of their own, matrices broadcast."""

_SELECT = Phase("select", (seams.SliceOfConcat(), hoisting.HoistSlice(), picking.HoistGather()))
"""Before anything is recognised: what is computed for nobody is nothing to be fast at."""

_RECOGNISE = Phase(
    "recognise",
    (
        *map(RulePass, recognise.RULES),
        attention.Attention(),
        attention_nodes.AttentionOp(),
        channels_last.ChannelNorm(),
        rotary.RotaryEmbedding(),
    ),
)
"""Spellings first: fusing half of one would hide it."""

_ROWS = Phase("rows", (unflatten_rows.UnflattenRows(),))
"""When products are regions, which take rows however many axes these have."""

_TURN = Phase(
    "turn",
    (
        channels_first.SinkTransposes(),
        channels_first.CancelTransposes(),
        volumes.Conv3dToConv2d(),
    ),
)
"""After what is recognised by its spelling, before convolutions take what follows them."""

_REDUCE = Phase(
    "reduce",
    (
        *map(RulePass, (*channel_norms.RULES, *reductions.RULES)),
        *map(RulePass, reductions.LIFTED),
    ),
)
"""After convolutions: a pool or norm between them is a step of their program."""

_COUNT = Phase("count", (grids.Iota(),))
"""After what reads integers and masks by their spelling, before chains take a part of one."""

MOVEMENT = (
    # what is left of the movement between all these; a concatenation goes to its reader,
    # where it need not be made, before it takes what writes its parts
    Phase(
        "move",
        (
            movement.FuseView(),
            movement.FuseReshape(),
            movement.Concat(),
            movement.SinkConcat(),
        ),
    ),
    Phase(
        "place",
        (
            movement.FuseIntoConcat(),
            movement.FuseView(),
            movement.FuseReshape(),
            movement.StridedCopy(),
        ),
    ),
    # when nobody can take anything in any more: what is read twice is read once
    Phase("share", (sharing.HorizontalFusion(),)),
)
"""Data movement, after everything that recognises more than movement."""


def _lift(prepack: bool) -> Phase:
    """Products and look-ups become regions that others can join."""
    return Phase(
        "lift",
        (
            gemm.Gemm(plain=not prepack),
            RulePass(matmul.MATMUL),
            RulePass(embedding.EMBEDDING),
            RulePass(taking.GATHER_ELEMENTS),
            RulePass(gemm.GEMM_BIAS),
            gemm.GemmReshape(),
            RulePass(conv.CONV),
            RulePass(conv.CONV_PAD),
            transposed.ConvTranspose(plain=not prepack),
            batch_norm.ConvBatchNorm(),
            branches.MergeParallelConvs(),
            RulePass(pool.POOL),
            RulePass(pool.POOL_FLATTEN),
            RulePass(pool.POOL_UNSQUEEZE),
            RulePass(resize.RESIZE),
            RulePass(shuffle.CHANNEL_SHUFFLE),
            shuffle.DeinterleaveChannels(),
            RulePass(recurrent.RECURRENT),
        ),
    )


def _fuse(prepack: bool) -> tuple[Phase, ...]:
    """Regions take in what is around them; matrices stand side by side unless they must not."""
    near = (projections.MergeQkv(),) if prepack else ()
    alone = (projections.MergeGemms(),) if prepack else ()
    fuse = (
        RulePass(embedding.EMBEDDING_SUM),
        *near,
        epilogue.GemmEpilogue(),
        RulePass(gemm.GEMM_NORM),
        RulePass(batch_norm.BATCH_NORM),
        conv.ConvEpilogue(),
        RulePass(padding.PAD),
        RulePass(embedding.EMBEDDING_NORM),
        elementwise.VerticalFusion(),
    )
    # last: a sum that a product could have taken must not go to the norm behind it
    finish = (
        elementwise.NormPrologue(),
        reductions.ReducePrologue(),
        reductions.ReduceEpilogue(),
        elementwise.ElementwiseOp(),
        *alone,
    )
    return Phase("fuse", fuse), Phase("finish", finish)


def phases(request: Request = Request()) -> tuple[Phase, ...]:
    """The phases that need not know a target, in order; a backend's own follow them.

    Within a phase the scheduler decides by predicted gain.
    """
    compressed = request.compressed
    looked_up = (Phase("compress-tables", (LowRankEmbedding(compressed),)),)
    rules = (LowRankConv(compressed), PruneChannels(compressed))
    heads = Phase("compress-heads", (PruneHeads(compressed),))
    channels = (Phase("compress-channels", rules), heads)
    return (
        _SPELL,
        _HEADS,
        _SELECT,
        _RECOGNISE,
        _TURN,
        *(looked_up if compressed else ()),
        _lift(request.prepack),
        _ROWS,
        _REDUCE,
        _COUNT,
        *_fuse(request.prepack),
        Phase("narrow", (DeadChannels(request.scan),)),
        *(channels if compressed else ()),
    )
