"""The search space of any case: legal drivers, those worth measuring first.

Spaces are declared next to what they are of (``gemm_space``, ``conv_space``), in the policy's
terms; the cost model only ranks, and what is kept is decided by measuring.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracea_graph.kernels.program import Driver
from tracea_graph.policy import Architecture, Config, SearchSpace
from tracea_graph.tuning import conv_space, gemm_space
from tracea_graph.tuning.convolution import ConvProblem
from tracea_graph.tuning.problem import Case, default_of

__all__ = ["candidates", "legal", "modelled_us", "space_of"]


def space_of(case: Case, isa: str, on: Architecture | None = None) -> SearchSpace:
    """Everything that can be chosen for a case, the default's values first on every axis."""
    if isinstance(case.problem, ConvProblem):
        return conv_space.space_of(case, isa)
    return gemm_space.space_of(case, isa, on)


def legal(case: Case, isa: str) -> Iterator[Driver]:
    """Every driver worth telling apart, the default first."""
    return (_driver(case, config) for config in space_of(case, isa).legal())


def candidates(
    case: Case,
    isa: str,
    threads: Sequence[int],
    limit: int | None = None,
    on: Architecture | None = None,
) -> list[Driver]:
    """The challengers to measure, at most ``limit``: seeds, then by modelled time.

    Ties are broken by the order of :func:`legal`; the default is not among them.
    """
    space, default = space_of(case, isa, on), default_of(case)
    before = [modelled_us(case, default, isa, t) for t in threads]

    def total(config: Config) -> float:
        """Modelled times relative to the default's, over all thread counts."""
        driver = _driver(case, config)
        after = (modelled_us(case, driver, isa, t) for t in threads)
        return sum(a / b for a, b in zip(after, before, strict=True))

    drivers = [_driver(case, config) for config in space.ranked(total)]
    same = next(space.legal())  # the default's values are first on every axis
    return [d for d in drivers if d != _driver(case, same)][:limit]


def modelled_us(case: Case, driver: Driver, isa: str, threads: int) -> float:
    """Predicted µs of one call on ``threads`` cores, weights cold."""
    if isinstance(case.problem, ConvProblem):
        return conv_space.modelled_us(case, driver, isa, threads)
    return gemm_space.modelled_us(case, driver, isa, threads)


def _driver(case: Case, config: Config) -> Driver:
    if isinstance(case.problem, ConvProblem):
        return conv_space.driver_of(case, config)
    return gemm_space.driver_of(case, config)
