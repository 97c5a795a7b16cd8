"""Run the first steps of a network of images for one half of the images after the other.

The first images of a network are the largest.  Where they take more than half of a GPU's L2, a
launch reads from memory what the one before it has just written.  Half of the images stay in L2
until they are read.  Later steps have too few tiles to be halved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tracea_graph.ir import Extent, TensorSpec, combine, product
from tracea_graph.kernels.gpu.lowering.program_writer import HALVES, GpuProgramWriter
from tracea_graph.kernels.program import View
from tracea_graph.kernels.program_writer import Value
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.filter_layouts import PLAIN
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.pool import PoolParams

__all__ = ["HalvedSteps", "halved_steps", "run_in_halves"]

_LARGE = 25 << 20
"""Bytes of the images that a step reads or makes above which steps are halved: half of an H100's
L2.  On it, MobileNetV2's steps up to there take 272 µs for 32 images instead of 318, ResNet-50's
399 instead of 421 (launches of plans for 16 images, replayed twice).
"""
_NARROW = tuple(dtype.short for dtype in HALVES)
Run = Callable[[int, dict[int, Value]], None]
"""Writes the calls of a step, given by its number, and adds its results to the values."""


@dataclass(frozen=True)
class HalvedSteps:
    """The first ``end`` steps of a region; ``batched`` are the values that hold all ``images``."""

    end: int
    images: Extent
    batched: frozenset[int]


def halved_steps(
    w: GpuProgramWriter, p: RegionParams, operands: Sequence[Value]
) -> HalvedSteps | None:
    """Return the steps to run in halves; None if all images fit into L2."""
    specs = [TensorSpec(v.dtype, v.shape) for v in operands]
    batched, images, end = set[int](), None, 0
    for number, step in enumerate(p.steps):
        reads = [specs[i] for i in step.operands]
        found = _image_operands(step, reads, images, [i in batched for i in step.operands])
        first = len(specs)
        results = range(first, first + step.results)
        if found is None or any(i in p.results for i in results):
            break
        made = step.params.infer(reads)[: step.results]
        images = (reads[found[0]].shape or (0,))[0]
        batched.update(step.operands[i] for i in found)
        batched.update(results)
        specs += made
        moved = [*(reads[i] for i in found), *made]
        sizes = [w.about(product(s.shape or ())) for s in moved]
        if max(size or 0 for size in sizes) * HALVES[0].size > _LARGE:
            end = number + 1
    if not end or images is None or (w.about(images) or 0) < 2:
        return None
    return HalvedSteps(end, images, frozenset(batched))


def _image_operands(
    step: RegionStep, reads: Sequence[TensorSpec], images: Extent | None, batched: Sequence[bool]
) -> list[int] | None:
    """Return which operands of a step hold all images; None if halves may not compute the step."""
    params, shapes = step.params, [s.shape or () for s in reads]
    if step.narrow not in _NARROW:
        return None
    if isinstance(params, ConvParams):
        if params.window.rank != 2 or params.layout is not PLAIN or any(batched[1:2]):
            return None
        first = [0]
    elif isinstance(params, PoolParams):
        if params.window is None or params.channels_last:
            return None
        first = [0]
    elif isinstance(params, ElementwiseParams):
        if params.maps or params.target or not any(batched):
            return None
        first = []
    else:
        return None
    found = sorted({*first, *(i for i, known in enumerate(batched) if known)})
    count = images if images is not None else shapes[found[0]][0]
    if any(len(shapes[i]) != 4 or shapes[i][0] != count for i in found):
        return None
    weights = (1,) if isinstance(params, ConvParams) else ()
    others = (s for i, s in enumerate(shapes) if i not in found and i not in weights)
    return None if any(len(s) == 4 and s[0] != 1 for s in others) else found


def run_in_halves(
    w: GpuProgramWriter, p: RegionParams, operands: Sequence[Value], halved: HalvedSteps, run: Run
) -> dict[int, Value]:
    """Write the steps for both halves; return the values, of which those read later are whole."""
    later = {i for step in p.steps[halved.end :] for i in step.operands}
    half = combine("ceildiv", halved.images, 2)
    whole, values = dict[int, Value](), dict[int, Value]()
    for start, count in ((0, half), (half, combine("sub", halved.images, half))):
        first = len(w.calls)
        values = {i: v.part(0, start, count) if i in halved.batched else v
                  for i, v in enumerate(operands)}  # fmt: skip
        for number in range(halved.end):
            run(number, values)
        for i in sorted(later & {*values} - {*range(p.inputs)}):
            whole[i] = _placed(w, values[i], first, halved.images, start, whole.get(i))
    return values | dict(enumerate(operands)) | whole


def _placed(
    w: GpuProgramWriter, value: Value, first: int, images: Extent, start: Extent,
    whole: Value | None,
) -> Value:  # fmt: skip
    """Move a half to its part of the whole value, which the first half makes; return the whole.

    Calls from ``first`` on write there, unless the value shares its buffer with others.
    """
    view, buffer = value.view, value.view.buffer
    if whole is None:
        order = (0, 2, 3, 1) if len(value.shape) == 4 and view.strides[1] == 1 else ()
        whole = w.temp(value.dtype, (images, *value.shape[1:]), order)
    target = whole.part(0, start, value.shape[0])
    own = buffer.kind == "temp" and w.temps[buffer.index][1] == product(value.shape)
    if not own or view.offset != 0 or view.strides != target.view.strides:
        w.copy(value, target)
        return whole

    def moved(seen: View | None) -> View | None:
        if seen is None or seen.buffer != buffer:
            return seen
        offset = combine("add", seen.offset, target.view.offset)
        return replace(seen, buffer=target.view.buffer, offset=offset)

    w.calls[first:] = [replace(c, views=tuple(map(moved, c.views))) for c in w.calls[first:]]
    w.temps[buffer.index] = w.temps[buffer.index][0], 0
    w.normed.pop(buffer, None)
    w.scaled.pop(buffer, None)
    return whole
