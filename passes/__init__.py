"""The passes that run, in order, and why there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tracea_graph.config import Window
from tracea_graph.ops.panels import BLOCKS
from tracea_graph.passes import recurrent, trunk
from tracea_graph.passes.attention import attention, flattened, rotary
from tracea_graph.passes.attention import nodes as attention_nodes
from tracea_graph.passes.attention.window import WindowAttention
from tracea_graph.passes.bands import BANDED
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
from tracea_graph.passes.convolution.bf16 import ConvInBf16, RoundDepthwise
from tracea_graph.passes.convolution.bf16x2 import ConvInBf16x2
from tracea_graph.passes.convolution.int16 import ConvInInt16
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
from tracea_graph.passes.precision import (
    LOWERING,
    AttentionInBf16,
    GemmInBf16,
    GemmInBf16x2,
    GemmInInt16,
)
from tracea_graph.passes.products import gemm, matmul, projections, rows
from tracea_graph.passes.sparse.block_sparse import SkipZeroBlocks
from tracea_graph.passes.sparse.channels import NarrowOnRequest
from tracea_graph.passes.sparse.compressed import PRUNED, Compressed, FactorOnRequest, PruneBlocks
from tracea_graph.passes.sparse.dead_channels import DEAD_CHANNELS, DropDeadChannels
from tracea_graph.passes.sparse.exact_rank import LOW_RANK, FactorGemm
from tracea_graph.passes.sparse.factored import FactorConvOnRequest, FactorLookUpOnRequest
from tracea_graph.passes.sparse.heads import NarrowHeadsOnRequest
from tracea_graph.passes.sparse.structure import WeightScan
from tracea_graph.passes.sparse.unstructured import FEW_ROWS, SkipScatteredZeros
from tracea_graph.passes.spelling import spelling
from tracea_graph.rewrite import Phase, RulePass

__all__ = ["CONNECT", "FORMS", "JOINING", "UNCHANGED", "WEIGHED", "phases"]

CONNECT = "connect"
"""The phase that makes one program of neighbouring regions."""
JOINING = (trunk.ConnectTrunk.name, trunk.ConnectBlocks.name)
"""Rules that make one program of several regions."""
FORMS = (
    *LOWERING, BANDED, DEAD_CHANNELS, "exact-rank", LOW_RANK, PRUNED, "unstructured", "window",
    "zero-blocks",
)  # fmt: skip
"""Rules that give a region another form: without them it is there in its plain one."""
WEIGHED = (DEAD_CHANNELS, "exact-rank", "zero-blocks")
"""Rules that depend on the numbers in weights."""

UNCHANGED: Mapping[str, Compressed] = MappingProxyType({})
"""Every matrix stays what it is."""

_SPELL = Phase("spell", (spelling.SpellOut(),))
"""What is several operators in one is written out, for the rules to see."""

_HEADS = Phase("heads", (flattened.TellHeads(),))
"""Before anything is recognised: with heads of their own, matrices broadcast."""

_SELECT = Phase("select", (seams.CutAtSeams(), hoisting.SelectFirst(), picking.PickRows()))
"""Before anything is recognised: what is computed for nobody is nothing to be fast at."""

_RECOGNISE = Phase(
    "recognise",
    (
        *map(RulePass, recognise.RULES),
        attention.RecogniseAttention(),
        attention_nodes.LiftAttention(),
        channels_last.RecogniseChannelNorm(),
        rotary.LiftRotary(),
    ),
)
"""Spellings first: fusing half of one would hide it."""

_ROWS = Phase("rows", (rows.TellRows(),))
"""When products are regions, which take rows however many axes these have."""

_TURN = Phase(
    "turn",
    (
        channels_first.SinkTransposes(),
        channels_first.MeetTransposes(),
        volumes.VolumesAsImages(),
    ),
)
"""After what is recognised by its spelling, before convolutions take what follows them."""

_REDUCE = Phase(
    "reduce",
    (
        *map(RulePass, (*channel_norms.RULES, *reductions.RULES)),
        reductions.LiftReduce(),
        reductions.LiftArg(),
        reductions.LiftTopK(),
        reductions.LiftSoftmax(),
    ),
)
"""After convolutions: a pool or norm between them is a step of their program."""

_COUNT = Phase("count", (grids.LiftGrid(),))
"""After what reads integers and masks by their spelling, before chains take a part of one."""

_FUSE = Phase(
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
)

_FINISH = Phase(
    "finish",
    (
        elementwise.AbsorbPrologue(),
        reductions.AbsorbBefore(),
        reductions.AbsorbAfter(),
        elementwise.LiftElementwise(),
        projections.MergeProducts(),
    ),
)
"""Last: a sum that a product could have taken must not go to the norm behind it."""

_MOVEMENT = (
    # what is left of the movement between all these; a concatenation goes to its reader,
    # where it need not be made, before it takes what writes its parts
    Phase(
        "move",
        (
            movement.AbsorbView(),
            movement.AbsorbReshape(),
            movement.LiftConcat(),
            movement.PushConcat(),
        ),
    ),
    Phase(
        "place",
        (
            movement.AbsorbPart(),
            movement.AbsorbView(),
            movement.AbsorbReshape(),
            movement.LiftMove(),
        ),
    ),
    # when nobody can take anything in any more: what is read twice is read once
    Phase("share", (sharing.ShareRead(),)),
)
"""Data movement, after everything that recognises more than movement."""


def _lift(plain_weights: bool, precision: str) -> Phase:
    """Products and look-ups become regions that others can join."""
    return Phase(
        "lift",
        (
            gemm.LiftGemm(plain_weights, twice=precision == "bf16"),  # half the size
            matmul.LiftMatMul(),
            embedding.LiftEmbedding(),
            taking.LiftTake(),
            gemm.AbsorbBias(),
            gemm.AbsorbFlattening(),
            conv.LiftConv(plain_weights),
            conv.AbsorbPad(),
            transposed.LiftTransposed(plain_weights),
            batch_norm.AbsorbBatchNorm(),
            branches.AddBranches(),
            pool.LiftPool(),
            pool.AbsorbFlatten(),
            pool.AbsorbUnsqueeze(),
            resize.LiftResize(),
            shuffle.LiftShuffle(),
            shuffle.LiftPiles(),
            recurrent.LiftRecurrent(),
        ),
    )


def _lower(precision: str, tiles: bool) -> tuple[Phase, ...]:
    """Regions are what they will be: only their numbers change.

    What bf16 is not to be used for is left for integers, or sums of two numbers in bf16 where
    matrix ``tiles`` make those faster.
    """
    integers, halves = Phase("int16", (GemmInInt16(),)), Phase("bf16x2", (GemmInBf16x2(),))
    rounds = Phase("precision", (GemmInBf16(), AttentionInBf16()))
    return {
        "bf16": (rounds, halves if tiles else integers),
        "bf16-weights": (Phase("precision", (GemmInBf16("bf16-weights"),)),),
        "bf16x2": (halves,),
        "int16": (integers,),
    }.get(precision, ())


def _lower_convolutions(precision: str, tiles: bool) -> tuple[Phase, ...]:
    """Before they are steps of a program, which stores values as its steps read them.

    What bf16 is not to be used for is left for integers; with matrix ``tiles``, where those have
    none of their own, for sums of two numbers in bf16, but for what is transformed.  Processors
    with them convert numbers of a depthwise convolution faster than they multiply pairs.
    """
    rounds = Phase("conv-precision", (ConvInBf16(broad=tiles),))
    integers = Phase("conv-int16", (ConvInInt16(transformed=tiles and precision == "bf16"),))
    further = Phase("depthwise-precision", (RoundDepthwise(),))
    halves = Phase("conv-bf16x2", (ConvInBf16x2(),))
    return {
        "bf16": (rounds, integers, halves) if tiles else (rounds, further, integers),
        "int16": (integers,),
        "bf16x2": (halves,),
    }.get(precision, ())


def phases(
    plain_weights: bool = False,
    precision: str = "fp32",
    windows: Sequence[Window] = (),
    compressed: Mapping[str, Compressed] = UNCHANGED,
    scan: WeightScan | None = None,
    tiles: bool = False,
) -> tuple[Phase, ...]:
    """Phases in order; within one, the scheduler decides by predicted gain.

    ``plain_weights`` leaves every matrix as the original stores it; ``precision`` is ``fp32``,
    ``bf16``, ``bf16-weights``, ``int16`` or ``bf16x2``; ``windows`` are for attention;
    ``compressed`` has what stands for matrices, by the names these are stored under; ``scan`` what
    an earlier plan found in weights; ``tiles`` says that there are matrix tiles for bf16.
    """
    scan = scan or WeightScan()
    looked_up = (Phase("compress-tables", (FactorLookUpOnRequest(compressed),)),)
    rules = (FactorConvOnRequest(compressed), NarrowOnRequest(compressed))
    heads = Phase("compress-heads", (NarrowHeadsOnRequest(compressed),))  # of the same name
    channels = (Phase("compress-channels", rules), heads)
    exact = (
        _SPELL,
        _HEADS,
        _SELECT,
        _RECOGNISE,
        _TURN,
        *(looked_up if compressed else ()),
        _lift(plain_weights, precision),
        _ROWS,
        _REDUCE,
        _COUNT,
        _FUSE,
        _FINISH,
        Phase("narrow", (DropDeadChannels(scan),)),
        *(channels if compressed else ()),  # before filters are stored as their transform
        *_lower_convolutions(precision, tiles),
        Phase("transform", (conv.TransformFilters(),)),
        # whole at last: what lies between the steps of one program lies as its kernels like it
        Phase(CONNECT, (trunk.ConnectTrunk(),)),
        *_MOVEMENT,
    )
    # regions are what they will be: what can be skipped in them is all that changes
    near = (WindowAttention(tuple(windows)),) if windows else ()
    blocks = BLOCKS[1:] if precision == "bf16" else BLOCKS  # pairs of steps lie together there
    other = (FactorOnRequest(compressed), PruneBlocks(compressed, blocks))
    smaller = (Phase("compress", other),) if compressed else ()
    scattered = SkipScatteredZeros(scan, FEW_ROWS if precision == "fp32" else 1)
    skipping = (FactorGemm(scan), SkipZeroBlocks(scan, blocks), scattered)
    sparse = Phase("sparsity", (*skipping, *near))
    last = Phase(CONNECT, (trunk.ConnectBlocks(),))
    return (*exact, *smaller, sparse, *_lower(precision, tiles), last)
