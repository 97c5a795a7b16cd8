"""Shorten expressions that quantize and dequantize: compute equal numbers in fewer steps.

saturate(round(q) + z, low, high) - z   ->   saturate(round(q), low - z, high - z)
saturate(round(relu(x) / s) + z, z, …)  ->   saturate(round(x / s) + z, z, …)
round(q) + 0, x - 0                     ->   round(q), x
x - z, x - z                            ->   one step instead of two equal ones
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tracea_graph.ops.chain import Chain, Ref, Step

__all__ = ["readers_of", "shorten_requantization", "without_step"]

_LARGEST = 1024.0
"""Magnitude of zero points and bounds up to which their sums with rounded numbers are exact."""


def shorten_requantization(chain: Chain) -> Chain:
    """Return an equivalent chain with fewer steps; ``chain`` itself if no step can be saved."""
    while (step := next(_shorter(chain), None)) is not None:
        chain = _without_unread(step)
    return chain


def _shorter(chain: Chain) -> Iterator[Chain]:
    """Yield equivalent chains in which one step fewer is read."""
    seen: dict[str, int] = {}
    for i, step in enumerate(chain.steps):
        made = len(chain.operands) + i
        if (first := seen.setdefault(repr(step), made)) != made:  # of zeros, repr tells the sign
            yield _reading(chain, i, first)
            continue
        value = step.args[0] if step.args else None
        if not isinstance(value, int) or len(step.args) < 2 or not isinstance(step.args[1], float):
            continue
        by = step.args[1]
        nothing = step.op == "sub" or (step.op == "add" and chain.step_of(value, "round"))
        if by == 0 and nothing:
            yield _reading(chain, i, value)
        elif step.op == "sub" and (moved := _moved(chain, value, by)) is not None:
            yield _exchanged(chain, i, moved)
        elif step.op == "div" and by > 0 and (source := _positive(chain, i, value)) is not None:
            yield _exchanged(chain, i, Step("div", (source, by)))


def _moved(chain: Chain, value: int, zero: float) -> Step | None:
    """Return a saturate step that equals ``value − zero``, or None.

    There is one if ``value`` is saturate(round(…) + zero).
    """
    held = chain.step_of(value, "saturate")
    added = chain.step_of(held.args[0], "add") if held else None
    if held is None or added is None or added.args[1] != zero or abs(zero) > _LARGEST:
        return None
    low, high = held.args[1:]
    if not isinstance(low, float) or not isinstance(high, float) or max(-low, high) > _LARGEST:
        return None
    rounded = chain.step_of(added.args[0], "round")
    return Step("saturate", (added.args[0], low - zero, high - zero)) if rounded else None


def _positive(chain: Chain, index: int, value: int) -> Ref | None:
    """Return the operand of the ``relu`` that computes ``value``, if a later saturation has the
    same effect; else None."""
    relu = chain.step_of(value, "relu")
    if relu is None:
        return None
    for rounded in readers_of(chain, index):
        if rounded is None or chain.steps[rounded].op != "round":
            return None
        for reader in readers_of(chain, rounded):
            if reader is None or not _holds(chain, reader):
                return None
    return relu.args[0]


def _holds(chain: Chain, index: int) -> bool:
    """Return whether a step saturates a rounded number at the value that 0 rounds to.

    The step may be an addition of a zero point before the saturation.
    """
    step, zero = chain.steps[index], 0.0
    if step.op == "add" and isinstance(step.args[1], float):
        zero = step.args[1]
        ends = [None if i is None else chain.steps[i] for i in readers_of(chain, index)]
    else:
        ends = [step]
    return all(e is not None and e.op == "saturate" and e.args[1] == zero for e in ends)


def readers_of(chain: Chain, index: int) -> Iterator[int | None]:
    """Yield the indices of the steps that read the value of step ``index``.

    If the value is a result of the chain, None is yielded too.  A negative ``index`` stands for an
    operand of the chain.
    """
    value = len(chain.operands) + index
    for i, step in enumerate(chain.steps):
        if any(isinstance(a, int) and a == value for a in step.args):
            yield i
    if value in chain.results:
        yield None


def without_step(chain: Chain, index: int, value: int) -> Chain:
    """Return the chain without a step; the step's readers read ``value`` instead."""
    return _without_unread(_reading(chain, index, value))


def _reading(chain: Chain, index: int, value: int) -> Chain:
    """Return the chain whose readers of a step read ``value`` instead."""
    old = len(chain.operands) + index

    def move(ref: Ref) -> Ref:
        return value if isinstance(ref, int) and ref == old else ref

    steps = tuple(Step(s.op, tuple(map(move, s.args))) for s in chain.steps)
    results = tuple(value if r == old else r for r in chain.results)
    return replace(chain, steps=steps, results=results, stores=chain.result_types)


def _exchanged(chain: Chain, index: int, step: Step) -> Chain:
    steps = (*chain.steps[:index], step, *chain.steps[index + 1 :])
    return replace(chain, steps=steps)


def _without_unread(chain: Chain) -> Chain:
    """Return the chain without steps that nothing reads."""
    count, needed = len(chain.operands), set(chain.results)
    for i in range(len(chain.steps) - 1, -1, -1):
        if count + i in needed:
            needed |= {a for a in chain.steps[i].args if isinstance(a, int)}
    places = dict(zip(range(count), range(count), strict=True))
    steps: list[Step] = []
    for i, step in enumerate(chain.steps):
        if count + i in needed:
            places[count + i] = count + len(steps)
            args = tuple(a if isinstance(a, float) else places[a] for a in step.args)
            steps.append(Step(step.op, args))
    return replace(chain, steps=tuple(steps), results=tuple(places[r] for r in chain.results))
