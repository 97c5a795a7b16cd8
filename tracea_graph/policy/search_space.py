"""Search spaces as data: axes, constraints on configurations, and seeds to measure first.

    space = (
        SearchSpace()
        .tile_m([64, 128])
        .tile_n([64, 128, 256])
        .stages([2, 3, 4])
        .require("operand tiles fit shared memory", lambda c: shared_bytes(c) <= limit)
        .seed(tile_m=128, tile_n=128, stages=3)
    )
    best = space.ranked(modelled_us, limit=16)

Spaces are immutable; every method returns a new one, which lets a policy narrow the space that a
variant declares.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from tracea_graph.errors import UsageError, did_you_mean

__all__ = ["Config", "Constraint", "SearchSpace"]

Config = Mapping[str, int]
"""A value for each axis."""


@dataclass(frozen=True)
class Constraint:
    """A condition on legal configurations; ``reason`` is reported for those that violate it."""

    reason: str
    holds: Callable[[Config], bool]


@dataclass(frozen=True)
class SearchSpace:
    """All combinations of the axes' values that satisfy the constraints."""

    axes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    constraints: tuple[Constraint, ...] = ()
    seeds: tuple[tuple[tuple[str, int], ...], ...] = ()
    alike: Callable[[Config], Hashable] | None = None
    """Key of equivalent configurations, of which only the first counts; None if all differ."""

    # ---- construction ------------------------------------------------------------------

    def axis(self, name: str, values: Sequence[int]) -> SearchSpace:
        """Return a space whose axis has these values; raises ValueError for an empty list."""
        kept = tuple(dict.fromkeys(values))
        if not kept:
            raise ValueError(f"the axis {name!r} needs at least one value")
        axes = {**dict(self.axes), name: kept}
        return replace(self, axes=tuple(axes.items()))

    def tile_m(self, values: Sequence[int]) -> SearchSpace:
        """Set the rows of a tile."""
        return self.axis("tile_m", values)

    def tile_n(self, values: Sequence[int]) -> SearchSpace:
        """Set the columns of a tile."""
        return self.axis("tile_n", values)

    def tile_k(self, values: Sequence[int]) -> SearchSpace:
        """Set the depth of the operand tiles that are loaded at a time."""
        return self.axis("tile_k", values)

    def stages(self, values: Sequence[int]) -> SearchSpace:
        """Set the numbers of buffers of the software pipeline; 1 means no pipeline."""
        return self.axis("stages", values)

    def warps(self, values: Sequence[int]) -> SearchSpace:
        """Set the numbers of warps (groups of lanes) that share a tile."""
        return self.axis("warps", values)

    def split_k(self, values: Sequence[int]) -> SearchSpace:
        """Set the numbers of parts that the depth is split into; their results are summed."""
        return self.axis("split_k", values)

    def require(self, reason: str, holds: Callable[[Config], bool]) -> SearchSpace:
        """Add a constraint; ``reason`` is reported for configurations where it does not hold."""
        return replace(self, constraints=(*self.constraints, Constraint(reason, holds)))

    def seed(self, **config: int) -> SearchSpace:
        """Add a configuration to try first; axes it leaves open take their first value."""
        return replace(self, seeds=(*self.seeds, tuple(config.items())))

    def once(self, alike: Callable[[Config], Hashable]) -> SearchSpace:
        """Keep only the first of the configurations for which ``alike`` returns the same key."""
        return replace(self, alike=alike)

    def within(self, other: SearchSpace) -> SearchSpace:
        """Return this space restricted by another one.

        The axes that ``other`` sets replace those of this space; its constraints and seeds are
        added.  Raises UsageError for an axis that this space lacks.
        """
        space = self
        for name, values in other.axes:
            if name not in dict(self.axes):
                every = f"; the axes are {', '.join(n for n, _ in self.axes)}"
                which = did_you_mean(name, dict(self.axes)) or every
                raise UsageError(f"there is no axis {name!r}{which}")
            space = space.axis(name, values)
        for constraint in other.constraints:
            space = space.require(constraint.reason, constraint.holds)
        return replace(space, seeds=(*other.seeds, *space.seeds))

    # ---- queries -----------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of combinations, legal or not."""
        total = 1
        for _, values in self.axes:
            total *= len(values)
        return total

    def reason(self, config: Config) -> str:
        """Return why a configuration is not legal; empty if it is."""
        for name, values in self.axes:
            if config.get(name) not in values:
                return f"{name} is {config.get(name)}, not one of {', '.join(map(str, values))}"
        return next((c.reason for c in self.constraints if not c.holds(config)), "")

    def combinations(self) -> Iterator[Config]:
        """Yield every combination, in the order of the axes."""
        names = [name for name, _ in self.axes]
        for values in product(*(values for _, values in self.axes)):
            yield dict(zip(names, values, strict=True))

    def legal(self) -> Iterator[Config]:
        """Yield the legal configurations; of equivalent ones (:meth:`once`), only the first."""
        seen = set[Hashable]()
        for config in self.combinations():
            if self.reason(config):
                continue
            if self.alike is not None:
                if (key := self.alike(config)) in seen:
                    continue
                seen.add(key)
            yield config

    def legal_seeds(self) -> Iterator[Config]:
        """Yield the legal seeds, each once, replaced by the equivalent one in :meth:`legal`."""
        legal = (config for config in self.seeded() if not self.reason(config))
        unique = {self._key(config): config for config in legal}
        if self.alike is not None and unique:
            chosen = {self._key(config): config for config in self.legal()}
            return (chosen[key] for key in unique)
        return iter(unique.values())

    def seeded(self) -> Iterator[Config]:
        """Yield the seeds as configurations of all axes, legal or not."""
        first = {name: values[0] for name, values in self.axes}
        return ({**first, **dict(seed)} for seed in self.seeds)

    def _key(self, config: Config) -> Hashable:
        return self.alike(config) if self.alike else tuple(sorted(config.items()))

    def ranked(
        self, modelled_us: Callable[[Config], float], limit: int | None = None
    ) -> list[Config]:
        """Return the legal configurations worth measuring: seeds, then others by modelled time.

        Ties keep the order of :meth:`legal`.
        """
        seeds = list(self.legal_seeds())
        rest = [config for config in self.legal() if config not in seeds]
        return [*seeds, *sorted(rest, key=modelled_us)][:limit]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, with the reason texts of constraints in place of their functions."""
        return {
            "axes": {name: list(values) for name, values in self.axes},
            "constraints": [c.reason for c in self.constraints],
            "seeds": [dict(seed) for seed in self.seeds],
        }
