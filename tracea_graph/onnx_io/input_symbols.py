"""Which axes of a model's inputs have one size: a symbol binds them only where operators do.

ONNX Runtime does not hold inputs to the symbols their dimensions share.  So every axis has a
symbol of its own first, and what operators make of the sizes tells which of them belong together:

* sizes that operators take only if they are equal share a symbol;
* sizes that broadcast share one too, and those of which nobody sees whether they are repeated are
  *loose*: 1 may stand in their place.  Nobody does where whatever looks at them in another way (a
  sum along the axis, an output) sees the size of all that share the symbol;
* other sizes keep symbols of their own: they never meet, or repeating them would show.

In models with attention (``attends``) those whose repeating would show share it all
the same, and are held to it: batches of queries and keys, say, or a mask that is counted.
Symbols that stand in sums (``past + sequence``) are taken by their word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from onnx import NodeProto, TypeProto, ValueInfoProto

from tracea_graph.ir import PARTED, Weight
from tracea_graph.onnx_io.shapes import infer
from tracea_graph.onnx_io.size_constraints import SizeConstraints, Sizes
from tracea_graph.onnx_io.symbolic import VARIANT

__all__ = ["Held", "InputSymbols", "bind_symbols"]

_At = tuple[int, int]
"""An input and an axis of it."""
Held = frozenset[Sizes]
"""Sets of axes, or inputs: where one of them is broadcast it has the whole size of a symbol."""
_NEWEST = 1 << 30


@dataclass(frozen=True)
class InputSymbols:
    """The declared inputs under symbols that each mean one size.

    ``loose`` are those in whose place 1 may stand, except in what is made of all the inputs of one
    of their sets; ``known`` are types that inference over the whole model found, without what
    trusted a name.
    """

    inputs: Sequence[ValueInfoProto]
    known: Mapping[str, TypeProto]
    loose: Mapping[str, Held] = field(default_factory=dict)


def bind_symbols(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Iterable[str],
    weights: Mapping[str, Weight],
    opsets: Mapping[str, int],
    known: Mapping[str, TypeProto],
) -> InputSymbols:
    """Give axes of inputs one symbol where they have one size.  ``nodes`` come sorted."""
    places = _places(inputs, weights)
    if not places:
        return InputSymbols(inputs, known)
    own = {at: f"{s}{VARIANT}{i}" for s, found in places.items() for i, at in enumerate(found)}
    facts = infer(nodes, _renamed(inputs, own), weights, opsets, _without(known, places))
    constraints = SizeConstraints(facts, opsets.get("", _NEWEST))
    for node in nodes:
        constraints.node(node)
    for name in outputs:
        constraints.output(name)
    names, loose = dict[_At, str](), dict[str, Held]()
    for symbol, found in places.items():
        parts = _parts({own[at]: at[0] for at in found}, constraints)
        for i, (part, held) in enumerate(parts):
            name = f"{symbol}{PARTED}{i + 1}" if i else symbol
            names |= {at: name for at in found if own[at] in part}
            if held is not None:
                loose[name] = frozenset(
                    frozenset(inputs[at[0]].name for at in found if own[at] in sizes)
                    for sizes in held
                )
    split = {s for s, found in places.items() if len({names[at] for at in found}) > 1}
    return InputSymbols(_renamed(inputs, names), _without(known, split), loose)


def _places(inputs: Sequence[ValueInfoProto], weights: Collection[str]) -> dict[str, list[_At]]:
    """The symbols that stand at several axes and in no sum, and where."""
    found: dict[str, list[_At]] = {}
    for i, info in enumerate(inputs):
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.dim_param and info.name not in weights:
                found.setdefault(dim.dim_param, []).append((i, axis))
    if any(VARIANT in symbol or PARTED in symbol for symbol in found):
        return {}
    terms = {term.strip() for s in found if "+" in s for term in s.replace("*", "+").split("+")}
    return {s: at for s, at in found.items() if len(at) > 1 and s not in terms}


def _renamed(inputs: Sequence[ValueInfoProto], names: Mapping[_At, str]) -> list[ValueInfoProto]:
    made = []
    for i, info in enumerate(inputs):
        copy = ValueInfoProto()
        copy.CopyFrom(info)
        for axis, dim in enumerate(copy.type.tensor_type.shape.dim):
            if (i, axis) in names:
                dim.dim_param = names[i, axis]
        made.append(copy)
    return made


def _without(known: Mapping[str, TypeProto], symbols: Collection[str]) -> Mapping[str, TypeProto]:
    """The types, with dimensions of these names left open."""
    made = dict(known)
    for name, kind in known.items():
        if any(dim.dim_param in symbols for dim in kind.tensor_type.shape.dim if dim.dim_param):
            made[name] = copy = TypeProto()
            copy.CopyFrom(kind)
            for dim in copy.tensor_type.shape.dim:
                if dim.dim_param in symbols:
                    dim.Clear()
    return made


# ---- which variants of a symbol are one size ------------------------------------------------


def _parts(
    inputs: Mapping[str, int], constraints: SizeConstraints
) -> list[tuple[Sizes, Held | None]]:
    """Variants that share a symbol, in order; where some may be 1 in its place, which may not.

    Where repeating some would show, all keep symbols of their own; where there is attention, those
    are held to the size of all, unless what shows is of one of the ``inputs`` that have several.
    """
    variants, every = list(inputs), frozenset(inputs)
    pairs = [(a, b) for a, b in constraints.equal if a <= every]
    groups = _forced(variants, pairs)
    near = [*(a | b for a, b in pairs), *(s for s in constraints.met if s <= every)]
    found: list[tuple[Sizes, Held | None]] = []
    for whole in _merged([*groups, *near]):
        inside = [group for group in groups if group <= whole]
        full, seen = _held(whole, inside, pairs, constraints.whole)
        sides = Counter(side for group in inside for side in {inputs[v] for v in group})
        twice = any(all(sides[inputs[variant]] > 1 for variant in sizes) for sizes in seen)
        if seen and (twice or not constraints.attends):
            found += [(group, None) for group in inside]
        else:
            alone = all(any(s <= group for s in full | seen) for group in inside)
            found.append((whole, None if alone else frozenset(full | seen)))
    return sorted(found, key=lambda item: min(map(variants.index, item[0])))


def _forced(variants: Sequence[str], pairs: Sequence[tuple[Sizes, Sizes]]) -> list[Sizes]:
    """Variants in groups of equal size."""
    groups: list[Sizes] = [frozenset((v,)) for v in variants]
    while True:
        sides = [([g for g in groups if g & a], [g for g in groups if g & b]) for a, b in pairs]
        single = [one[0] | other[0] for one, other in sides if len(one) == len(other) == 1]
        more = _merged([*groups, *single])
        if len(more) == len(groups):
            return groups
        groups = more


def _merged(sets: Iterable[Sizes]) -> list[Sizes]:
    """The sets, those that have something in common put together."""
    found: list[Sizes] = []
    for one in sets:
        apart = [other for other in found if not other & one]
        found = [*apart, one.union(*(other for other in found if other & one))]
    return found


def _held(
    whole: Sizes,
    groups: Sequence[Sizes],
    pairs: Sequence[tuple[Sizes, Sizes]],
    demanded: Iterable[Sizes],
) -> tuple[set[Sizes], set[Sizes]]:
    """What is as large as ``whole`` in any case; and what somebody would see to be repeated, for
    its size shows and need not be that."""

    def filled(sizes: Sizes) -> Sizes:
        """With all that have the size of one of them."""
        return frozenset().union(*(group for group in groups if group & sizes))

    full = {whole}
    both = [(filled(a), filled(b)) for a, b in pairs if a <= whole]
    both += [(b, a) for a, b in both]
    while more := {b for a, b in both if any(s <= a for s in full)} - full:
        full |= more
    shown = {filled(sizes) for sizes in demanded if sizes & whole}
    return full, {sizes for sizes in shown if not any(s <= sizes for s in full)}
