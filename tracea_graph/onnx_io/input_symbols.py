"""Binding of input symbols: decide which axes of a model's inputs must have equal sizes.

ONNX Runtime does not enforce that dimensions of one symbol are equal.  Each axis therefore starts
with a symbol of its own, and the operators that use the sizes decide which ones are merged:

* sizes that an operator requires to be equal share a symbol;
* sizes that broadcast to each other share a symbol too; the symbol is *loose* (an axis may be 1
  instead) if broadcasting cannot be observed: every operator that depends on the axis in another
  way (a sum along it, a model output) sees the size that all axes of the symbol broadcast to;
* other sizes keep symbols of their own: they never meet, or broadcasting them would be observable.

In models with attention (``attends``), sizes whose broadcasting would be observable are merged
nevertheless and required to be equal: batches of queries and keys, or a mask that is counted.
A symbol that occurs in a sum (``past + sequence``) is assumed to mean one size.  The keys of a
mask that have a symbol of their own are such a sum if attention adds the mask to scores of as many
keys (``total_lengths``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count

from onnx import NodeProto, TypeProto, ValueInfoProto

from tracea_graph.ir import SYMBOL_NUMBER_MARK, Weight
from tracea_graph.onnx_io.shape_inference import infer_shapes
from tracea_graph.onnx_io.size_constraints import SizeConstraints, Sizes
from tracea_graph.onnx_io.symbolic_arithmetic import VARIANT
from tracea_graph.onnx_io.total_lengths import total_lengths

__all__ = ["Held", "InputSymbols", "bind_symbols"]

_At = tuple[int, int]
"""An input and one of its axes."""
Held = frozenset[Sizes]
"""Sets of axes or inputs; the members of a set broadcast to the whole size of a symbol."""
_NEWEST = 1 << 30


@dataclass(frozen=True)
class InputSymbols:
    """The declared inputs, with symbols renamed so that axes of one symbol have equal sizes.

    ``loose`` maps a symbol to sets of inputs: an axis of that symbol may have size 1 instead,
    except in values computed from all inputs of a set.  ``known`` are types found by inference
    over the whole model, in which dimensions of a symbol that was split into several are unknown.
    ``sums`` has the sums that replaced symbols.
    """

    inputs: Sequence[ValueInfoProto]
    known: Mapping[str, TypeProto]
    loose: Mapping[str, Held] = field(default_factory=dict)
    sums: Mapping[str, str] = field(default_factory=dict)


def bind_symbols(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Iterable[str],
    weights: Mapping[str, Weight],
    opsets: Mapping[str, int],
    known: Mapping[str, TypeProto],
) -> InputSymbols:
    """Assign one symbol to all input axes that must be equal in size.

    ``nodes`` are in topological order.
    """
    places = _places(inputs, weights)
    if not places:
        return InputSymbols(inputs, known)
    own = {at: f"{s}{VARIANT}{i}" for s, found in places.items() for i, at in enumerate(found)}
    facts = infer_shapes(nodes, _renamed(inputs, own), weights, opsets, _without(known, places))
    if sums := total_lengths(nodes, inputs, facts):
        summed = _renamed(inputs, {at: sums[s] for at, s in _symbols(inputs) if s in sums})
        known = _without(known, sums)
        return replace(bind_symbols(nodes, summed, outputs, weights, opsets, known), sums=sums)
    constraints = SizeConstraints(facts, opsets.get("", _NEWEST))
    for node in nodes:
        constraints.node(node)
    for name in outputs:
        constraints.output(name)
    names, loose = dict[_At, str](), dict[str, Held]()
    taken = {symbol for _, symbol in _symbols(inputs)}
    for symbol, found in places.items():
        numbered = (f"{symbol}{SYMBOL_NUMBER_MARK}{i}" for i in count(2))
        free = chain([symbol], (name for name in numbered if name not in taken))
        parts = _parts({own[at]: at[0] for at in found}, constraints)
        for name, (part, held) in zip(free, parts, strict=False):
            names |= {at: name for at in found if own[at] in part}
            if held is not None:
                loose[name] = frozenset(
                    frozenset(inputs[at[0]].name for at in found if own[at] in sizes)
                    for sizes in held
                )
    split = {s for s, found in places.items() if len({names[at] for at in found}) > 1}
    return InputSymbols(_renamed(inputs, names), _without(known, split), loose)


def _places(inputs: Sequence[ValueInfoProto], weights: Collection[str]) -> dict[str, list[_At]]:
    """Symbols that occur at several axes and in no sum, with their axes."""
    found: dict[str, list[_At]] = {}
    for at, symbol in _symbols(inputs):
        if inputs[at[0]].name not in weights:
            found.setdefault(symbol, []).append(at)
    if any(VARIANT in symbol for symbol in found):
        return {}
    terms = {term.strip() for s in found if "+" in s for term in s.replace("*", "+").split("+")}
    return {s: at for s, at in found.items() if len(at) > 1 and s not in terms}


def _symbols(inputs: Sequence[ValueInfoProto]) -> Iterator[tuple[_At, str]]:
    """Yield the axes of inputs that have symbols, with these."""
    for i, info in enumerate(inputs):
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.dim_param:
                yield (i, axis), dim.dim_param


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
    """Types with the dimensions of the given names left unknown."""
    made = dict(known)
    for name, kind in known.items():
        if any(dim.dim_param in symbols for dim in kind.tensor_type.shape.dim if dim.dim_param):
            made[name] = copy = TypeProto()
            copy.CopyFrom(kind)
            for dim in copy.tensor_type.shape.dim:
                if dim.dim_param in symbols:
                    dim.Clear()
    return made


# ---- merging of variants --------------------------------------------------------------------


def _parts(
    inputs: Mapping[str, int], constraints: SizeConstraints
) -> list[tuple[Sizes, Held | None]]:
    """Variants that share a symbol, in order, each with the sets that may not all be 1.

    If broadcasting some would be observable, all keep symbols of their own.  With attention, they
    are required to be equal instead, unless the observed value is one of the ``inputs`` that have
    several.
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
    """Groups of variants of equal size."""
    groups: list[Sizes] = [frozenset((v,)) for v in variants]
    while True:
        sides = [([g for g in groups if g & a], [g for g in groups if g & b]) for a, b in pairs]
        single = [one[0] | other[0] for one, other in sides if len(one) == len(other) == 1]
        more = _merged([*groups, *single])
        if len(more) == len(groups):
            return groups
        groups = more


def _merged(sets: Iterable[Sizes]) -> list[Sizes]:
    """Union of all sets that overlap."""
    found: list[Sizes] = []
    for one in sets:
        disjoint = [other for other in found if not other & one]
        found = [*disjoint, one.union(*(other for other in found if other & one))]
    return found


def _held(
    whole: Sizes,
    groups: Sequence[Sizes],
    pairs: Sequence[tuple[Sizes, Sizes]],
    demanded: Iterable[Sizes],
) -> tuple[set[Sizes], set[Sizes]]:
    """Sizes that are certainly as large as ``whole``, and those observed without being so."""

    def filled(sizes: Sizes) -> Sizes:
        """Return these variants and all that must be equal to one of them."""
        return frozenset().union(*(group for group in groups if group & sizes))

    full = {whole}
    both = [(filled(a), filled(b)) for a, b in pairs if a <= whole]
    both += [(b, a) for a, b in both]
    while more := {b for a, b in both if any(s <= a for s in full)} - full:
        full |= more
    shown = {filled(sizes) for sizes in demanded if sizes & whole}
    return full, {sizes for sizes in shown if not any(s <= sizes for s in full)}
