"""Depthwise convolution and pooling of channels-last images.

Both are memory-bound.  Sums are in float32, tap by tap.
"""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import combine, product
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families import products
from tracea_graph.kernels.gpu.families.convolution import flat
from tracea_graph.kernels.gpu.launch import Launch, divisor, i32
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, View

__all__ = ["launch", "name", "parameters", "shared"]


def _product(call: Call) -> Call:
    """Return a matmul with the call's epilogue whose depth is the taps of the window."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    x, y = named["x"], named["y"][0] if call.op == "depthwise" else named["y"]
    channels = y.dims[3]
    if call.op == "depthwise":
        w = named["w"]
        taps = product(w.dims[:2])
        w = View(w.buffer, (taps, channels), w.strides[1:], w.offset)
        more = {"bias": named["bias"], "inputs": [flat(v) for v in named["inputs"]]}
        ys = [flat(view) for view in named["y"]]
    else:
        taps = product(tuple(call.attributes["kernel"]))
        w, more, ys = View(x.buffer, (taps, channels), (0, 0), x.offset), {}, [flat(y)]
    return CALLS.make(
        "gemm", call.dtype, layout="kn", chain=call.chain, w=w, y=ys, **more,
        x=View(x.buffer, (product(y.dims[:3]), taps), (0, 0), x.offset),
    )  # fmt: skip


def name(call: Call) -> str:
    what = f"pool_{call.attributes['kind']}" if call.op == "pool" else "depthwise"
    return products.name(_product(call)).replace("gemm_kn", what)


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    what = call.attributes["kind"] if call.op == "pool" else "depthwise"
    return {**products.epilogue(_product(call)), "what": what}


def shared(call: Call, variant: Variant) -> int:
    return 0


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named: dict[str, Any] = CALLS.of(call).named(call)
    x, a, same = named["x"], call.attributes, _product(call)
    y = named["y"][0] if call.op == "depthwise" else named["y"]
    _, p, q, _ = y.dims
    taps_w = named["w"].dims[1] if call.op == "depthwise" else a["kernel"][1]
    threads, made = products.arguments(same, 1, products.vector_length(same))
    made += map(i32, (*x.strides, *x.dims[1:3]))
    made += [divisor(combine("mul", p, q)), divisor(q), i32(taps_w)]
    made += map(i32, (*a["strides"], *a["dilations"], *a["pads"]))
    blocks = combine("ceildiv", threads, variant.threads)
    return Launch(symbol, (blocks, 1, 1), variant.threads, 0, tuple(made))
