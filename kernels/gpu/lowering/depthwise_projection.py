"""Compute a depthwise convolution and the 1 × 1 convolution behind it in one call.

Apart they store and read an image of many channels, of which the second convolution makes few.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracea_graph.errors import GraphError
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.convolution import as_pixel_rows
from tracea_graph.kernels.gpu.families.depthwise_projection import BETWEEN, refusal
from tracea_graph.kernels.gpu.lowering.program_writer import HALVES, GpuProgramWriter
from tracea_graph.kernels.gpu.window_choice import projects_early
from tracea_graph.kernels.program import Call, View
from tracea_graph.kernels.program_writer import Value
from tracea_graph.ops.chain import FULL, Chain
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.fused_region import RegionParams

__all__ = ["project_where_computed", "projecting_steps"]

_TYPES = {dtype.short: dtype for dtype in HALVES}


def projecting_steps(p: RegionParams) -> frozenset[int]:
    """Return the numbers of the convolutions that alone read a depthwise convolution's result."""
    made, readers = p.makers, p.readers
    found = set[int]()
    for number, step in enumerate(p.steps):
        if not isinstance(step.params, ConvParams):
            continue
        value = step.operands[0]
        before = p.steps[made[value]].params if value in made else None
        alone = readers[value] == 1 and value not in p.results
        if alone and isinstance(before, ConvParams) and before.groups == before.channels > 1:
            found.add(number)
    return frozenset(found)


def project_where_computed(w: GpuProgramWriter, call: Call) -> bool:
    """Write a convolution and the depthwise one that it alone reads as one call.

    ``call`` is the convolution, which is not written yet.  Returns False if no kernel computes
    both, or not faster.
    """
    x = call.views[0]
    before = next((c for c in reversed(w.calls) if c.op == "depthwise" and x and _y(c) == x), None)
    made = before and call.dtype in _TYPES and _call_of(before, call)
    if not before or not made:
        return False
    if not projects_early(made, w.about(_y(made).dims[0]) or 0):
        return False
    w.drop(before)
    places, views = CALLS.of(made).slices(made), list(made.views)
    at = places["w"].start
    own = views[at]
    assert own is not None
    wide = w.temp(DType.F32, own.dims)
    w.copy(Value(own, _TYPES[call.dtype]), wide)
    views[at] = wide.view
    w.calls.append(replace(made, views=tuple(views)))
    return True


def _y(call: Call) -> View:
    named: dict[str, Any] = CALLS.of(call).named(call)
    (y,) = named["y"]
    assert isinstance(y, View)
    return y


def _call_of(before: Call, call: Call) -> Call | None:
    """Return the call that stands for both; None if no kernel computes it."""
    own: dict[str, Any] = CALLS.of(before).named(before)
    named: dict[str, Any] = CALLS.of(call).named(call)
    image, activation = _y(before).dims[1:3], _activation(before)
    plain = named["w"].dims[1:-1] == call.attributes["strides"] == (1, 1)
    plain = plain and call.attributes["pads"] == (0, 0) and call.attributes["groups"] == 1
    if not plain or activation is None or max(before.attributes["dilations"]) > 1:
        return None
    if not all(isinstance(size, int) for size in image):
        return None
    try:
        rows: dict[str, Any] = {n: [as_pixel_rows(v) for v in named[n]] for n in ("inputs", "y")}
        rows["w2"] = as_pixel_rows(named["w"])
    except GraphError:
        return None
    dtype = _TYPES[call.dtype]
    windows = View.dense(own["w"].buffer, own["w"].dims)
    if own["w"] != windows:
        return None
    made = CALLS.make(
        "depthwise_projection", call.dtype, **rows, x=own["x"], w=windows, bias1=own["bias"],
        bias=named["bias"], image=image, activation=activation,
        chain=call.chain or Chain((FULL,), (), (0,), (DType.F32,), (dtype,)),
        **{n: before.attributes[n] for n in ("strides", "pads")},
    )  # fmt: skip
    return None if refusal(made) else made


def _activation(before: Call) -> str | None:
    """Return what a depthwise convolution applies to its sums; None if no kernel does."""
    chain = before.chain
    if chain is None:
        return "none"
    own = chain.result_types == (_TYPES[before.dtype],)
    if chain.operands != (FULL,) or chain.results != (len(chain.steps),) or not own:
        return None
    return next((name for name, steps in BETWEEN.items() if steps == chain.steps), None)
