"""Matmuls and convolutions of 8-bit numbers by warpgroups (``wgmma``), for sm_90a.

The kernels are those of :mod:`warpgroup_matmul` and :mod:`warpgroup_convolution`, with steps of
128 bytes of the depth.  Sums of integers are exact in int32; those of 8-bit floats, which matmuls
have, are float32 of which the tensor cores keep 14 bits.  If they are ``promoted``, each step's
sums are added to others in float32, for which tiles are smaller.  A zero point of x is corrected
by the sums of w's columns, which are operands of the call; zero points of w are left to
:mod:`integer_matmul`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tracea_graph.errors import GraphError
from tracea_graph.ir import DType, Extent, combine, product
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families import (
    tensor_core_matmul,
    warpgroup_convolution,
    warpgroup_matmul,
)
from tracea_graph.kernels.gpu.families.level_tables import LevelTable, split_at_levels
from tracea_graph.kernels.gpu.families.lifted_literals import Lifted, lifted
from tracea_graph.kernels.gpu.families.merged_roundings import LEVELS
from tracea_graph.kernels.gpu.families.warpgroup_tile import Tile
from tracea_graph.kernels.gpu.launch import Argument, Launch, f32, i32, pointer
from tracea_graph.kernels.gpu.semantic.shared_memory_swizzle import LINE
from tracea_graph.kernels.gpu.tile_choice import PROMOTED_TILE
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, View
from tracea_graph.ops.chain import FLOATS8

__all__ = ["epilogue_of", "launch", "launch_without_numbers", "layout_of", "name", "parameters",
           "refusal", "shared", "steps_of", "table_of"]  # fmt: skip

_MOST_TIMES = 4
"""Maximum number of times that the code of an epilogue runs for a tile."""
_TYPES = {"u8": DType.U8, "i8": DType.I8, **{t.short: t for t in FLOATS8}}


def _named(call: Call) -> dict[str, Any]:
    return CALLS.of(call).named(call)


def _convolves(call: Call) -> bool:
    return call.op == "integer_conv"


def _shifted(call: Call) -> bool:
    return bool(call.attributes.get("shifted", False))


def _window_call(call: Call) -> Call:
    """Return the float convolution of the same sizes, whose types are placeholders."""
    named, a = _named(call), call.attributes
    x, w = named["x"], named["w"]
    taps, channels = tuple(a["kernel"]), x.dims[-1]
    steps = combine("mul", channels, taps[1]), channels, 1
    filters = View(w.buffer, (w.dims[0], *taps, channels), (w.strides[0], *steps), w.offset)
    return CALLS.make(
        "conv", "f16", x=x, w=filters, inputs=named["inputs"], y=named["y"], chain=call.chain,
        **{one: a[one] for one in ("strides", "dilations", "pads")},
    )  # fmt: skip


def _product(call: Call) -> Call:
    """Return the float matmul of the same sizes, whose types are placeholders."""
    named = _named(call)
    x, w, inputs, ys = named["x"], named["w"], named["inputs"], named["y"]
    if _convolves(call):
        own = tensor_core_matmul.views_by_operand(
            warpgroup_convolution.product_of_windows(_window_call(call))
        )
        x, inputs, ys = own["x"], own["inputs"], own["y"]
    return CALLS.make(
        "gemm", "f16", layout="nk", x=x, w=w, inputs=inputs, y=ys, chain=call.chain,
        column_sums=named["column_sums"] if _shifted(call) else None,
    )  # fmt: skip


def name(call: Call) -> str:
    made = warpgroup_matmul.name(_product(call))
    made = made.replace("wgmma_nk", "wgconv" if _convolves(call) else "wgmma", 1)
    if call.chain is not None and _is_integer(call):
        made = made.replace(f"{call.chain.key:016x}", epilogue_of(call).key)
    made += "_by_e5m2" * (_right(call) is DType.F8E5M2)
    return made + "_shifted" * _shifted(call) + "_promoted" * _promoted(call)


def _right(call: Call) -> DType:
    """Return the element type of w."""
    return _TYPES[str(call.attributes["w_type"])] if call.op == "float8_gemm" else DType.I8


def _promoted(call: Call) -> bool:
    return bool(call.attributes.get("promoted", False))


def _widest_twice(call: Call) -> int:
    """Return the maximum columns of a tile whose sums are held twice beside the epilogue."""
    return 128 if call.chain is not None and "full" in call.chain.operands[1:] else 192


def _is_for_promotion(variant: Variant) -> bool:
    p = variant.params
    return (p["m"], p["n"], p["stages"], p["pingpong"], p["pair"]) == PROMOTED_TILE


def _with_promotion(call: Call, variant: Variant) -> Variant:
    """Return the variant with a parameter that says whether the call's sums are promoted."""
    if not _promoted(call):
        return variant
    return replace(variant, params={**variant.params, "promoted": 1})


def refusal(call: Call, variant: Variant) -> str:
    """Return why a variant cannot compute a call, or "" if it can at some sizes."""
    named = _named(call)
    if named.get("w_zeros") is not None:
        return "sums of x's rows, which zero points of w need, are not available"
    if _shifted(call) and named["column_sums"] is None:
        return "a zero point of x needs the sums of w's columns"
    if named["w"].strides[-1] != 1:
        return "tensor maps need operands that are contiguous along their last axis"
    if _promoted(call) and variant.params["n"] > _widest_twice(call):
        return "two sets of sums leave no registers"
    if not _promoted(call) and _is_for_promotion(variant):
        return "larger tiles are faster where sums are held once"
    if shared(call, variant) > ARCHITECTURES["sm_90a"].block_shared:
        return "the epilogue leaves no shared memory for the tile"
    if not _convolves(call):
        return warpgroup_matmul.refusal(_product(call), variant)
    if _shifted(call) and not _inside(call):
        return "tensor maps fill pixels around an image with 0, not with the zero point"
    try:
        window = _window_call(call)
    except GraphError as error:
        return str(error)
    if why := warpgroup_convolution.refusal_of_image(window, LINE):
        return why
    channels, taps = named["x"].dims[-1], call.attributes["kernel"]
    if channels <= LINE // 2 and max(taps) > 1:
        return f"with {channels} channels half of each step of {LINE} would be padding"
    return warpgroup_matmul.refusal(_product(call), variant)


def _inside(call: Call) -> bool:
    """Whether all pixels that a convolution reads are known to lie in the image."""
    named, a = _named(call), call.attributes
    for axis in (0, 1):
        size, out = named["x"].dims[1 + axis], named["y"][0].dims[1 + axis]
        reach = (a["kernel"][axis] - 1) * a["dilations"][axis]
        if a["pads"][axis]:
            return False
        if reach == 0 and a["strides"][axis] == 1 and out == size:
            continue
        if not (isinstance(size, int) and isinstance(out, int)):
            return False
        if (out - 1) * a["strides"][axis] + reach >= size:
            return False
    return True


def steps_of(call: Call) -> Extent:
    """Return the number of steps over the depth."""
    named = _named(call)
    if not _convolves(call):
        return combine("ceildiv", named["x"].dims[-1], LINE)
    blocks = combine("ceildiv", named["x"].dims[-1], LINE)
    return combine("mul", product(tuple(call.attributes["kernel"])), blocks)


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    made = warpgroup_matmul.parameters(
        _product(call), _with_promotion(call, variant), table_of(call)
    )  # fmt: skip
    if _is_integer(call):
        epilogue = epilogue_of(call)
        own = {n: epilogue.parameters[n] for n in ("text", "steps", "results", "bounded_rows")}
        table = made["table"] and {**made["table"], **epilogue.parameters["table"]}
        made |= {**own, "table": table, "literals": epilogue.names}
    right = chain_parameters.ELEMENTS[_right(call)]
    unrolled = _unrolled(call, made)
    return {**made, "conv": _convolves(call), "right": right, "unrolled": unrolled}


def _unrolled(call: Call, made: dict[str, Any]) -> int:
    """Return how many strips of columns an epilogue finishes before it loops; 0 if it never does.

    Epilogues of integers are long.  Most tiles of a matmul are the only ones of their block, and
    such code takes longer to fetch than to run.  Blocks of convolutions have more tiles.
    """
    strips: int = made["strips"]
    alone = made["tall"] > 1 or made["shifted"] or strips == 1
    if alone or _convolves(call) or not _is_integer(call):
        return 0
    return next(n for n in range(1, strips + 1) if strips % n == 0 and strips // n <= _MOST_TIMES)


def _is_integer(call: Call) -> bool:
    return call.op != "float8_gemm"


def epilogue_of(call: Call) -> Lifted:
    """Return the statements of the epilogue of integers, whose numbers are arguments."""
    return lifted(warpgroup_matmul.epilogue_statements(_product(call), table_of(call), near=True))


def table_of(call: Call) -> LevelTable | None:
    """Return the table of results that the end of a call's epilogue becomes, or None."""
    return split_at_levels(call.chain) if call.chain else None


def layout_of(call: Call, variant: Variant) -> Tile:
    """Return the shared-memory layout of a call's operands."""
    return warpgroup_matmul.shared_layout(_product(call), variant)


def shared(call: Call, variant: Variant) -> int:
    return warpgroup_matmul.shared(_product(call), variant) + LEVELS * bool(table_of(call))


def launch(
    call: Call, variant: Variant, symbol: str, more: Sequence[Argument] = ()
) -> Launch:  # fmt: skip
    """Return the launch of a call; ``more`` are arguments behind those of a zero point."""
    made = launch_without_numbers(call, variant, symbol, more)
    numbers = map(f32, epilogue_of(call).values if _is_integer(call) else ())
    return replace(made, arguments=(*made.arguments, *numbers), shared=shared(call, variant))


def launch_without_numbers(
    call: Call, variant: Variant, symbol: str, more: Sequence[Argument] = ()
) -> Launch:  # fmt: skip
    """Return the launch of a call, without the numbers of its epilogue; see :func:`launch`."""
    named, zero, own = _named(call), list[Argument](), _TYPES[call.dtype]
    if _shifted(call):
        zero = [pointer(named["column_sums"], DType.F32), pointer(named["x_zero"], own),
                i32(int(call.attributes["zero"]))]  # fmt: skip
    if not _convolves(call):
        return warpgroup_matmul.launch(_product(call), variant, symbol, [*zero, *more])
    p = variant.params
    maps, windows, steps = warpgroup_convolution.operands(
        _window_call(call), p["m"], p["n"], (own, DType.I8)
    )
    depth = combine("mul", steps, LINE)
    return warpgroup_matmul.launch_over(
        _product(call), variant, symbol, maps, depth, windows, zero
    )  # fmt: skip
