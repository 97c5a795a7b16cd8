"""Build this machine's tuner from its cache, a benchmark fixture and the machine's facts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from tracea_graph.config import Environment
from tracea_graph.policy import SearchSpace
from tracea_graph.temporary_files import ScratchFolder
from tracea_graph.tuning.benchmark_fixture import ModelFixture
from tracea_graph.tuning.cache_key import machine_facts
from tracea_graph.tuning.result_cache import TuningCache
from tracea_graph.tuning.schedule_space import Fixture, Tunable
from tracea_graph.tuning.task_priority import MIN_GAIN
from tracea_graph.tuning.tuner import Pin, Propose, Tuner
from tracea_graph.tuning.tuner_events import Listener, ignore_event
from tracea_graph.tuning.tuning_problem import Problem

__all__ = ["CACHE_FILE", "Building", "TuningOptions", "machine_tuner"]

CACHE_FILE = "tuning.sqlite"

Building = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class TuningOptions:
    """What to tune for: the highest of ``levels``, these thread counts, and a budget in seconds.

    ``rest_us`` is the predicted µs of the model's other regions; ``storage`` the URL of studies
    shared with other machines; ``lost_after`` the seconds after which a trial there is given up;
    ``min_gain`` the end-to-end gain (a share) below which cases are not tuned.  If ``selective``,
    only requested row counts are tuned, without cases of small gain.  ``within`` replaces
    axes of the search space.  ``weight_bytes`` are those of the model's weights, which stay in the
    last-level cache between runs if they fit; None measures with cold weights.
    """

    levels: Sequence[str]
    threads: Sequence[int] = (1,)
    budget: float = 5.0
    rest_us: float = 0.0
    seed: int = 0
    storage: str = ""
    lost_after: float = 60.0
    min_gain: float = MIN_GAIN
    selective: bool = False
    within: SearchSpace | None = None
    weight_bytes: int | None = None


def resident_bytes(weight_bytes: int | None, cache_bytes: int) -> int | None:
    """Return how many bytes of weights to measure with so that they stay cached, as in the model.

    Returns None if the model's weights do not fit in the cache.  The number is rounded up to a
    power of two, so that models of similar size share results.
    """
    if weight_bytes is None:
        return None
    rounded: int = max(1 << 20, 1 << max(weight_bytes - 1, 1).bit_length())
    return rounded if 2 * rounded <= cache_bytes else None


@contextmanager
def machine_tuner(
    options: TuningOptions,
    backend: Tunable,
    environment: Environment | None = None,
    *,
    listen: Listener = ignore_event,
    propose: Propose = lambda case, ranked: ranked,
    pin: Pin = lambda case: None,
    building: Building = nullcontext,
) -> Iterator[Tuner]:
    """Yield a tuner with this machine's tuning cache, for a backend with a schedule space.

    The library that runs candidate schedules is compiled inside ``building()``, if need be.
    """
    environment, schedule_space = environment or Environment(), backend.schedule_space
    assert schedule_space is not None
    resident = resident_bytes(options.weight_bytes, schedule_space.cache_bytes)
    facts = machine_facts(backend.fingerprint(), environment)
    if resident is not None:
        facts["weights"] = f"{resident >> 20} MiB, in the cache"
    with (
        TuningCache(environment.cache / CACHE_FILE) as cache,
        ScratchFolder("tune") as folder,
    ):

        def fixture(problems: Sequence[Problem]) -> AbstractContextManager[Fixture]:
            level = options.levels[-1]
            with building():
                own = schedule_space.fixture(problems, level, environment, resident)
                return own or ModelFixture(
                    problems, backend, level, Path(folder),
                    environment=environment, cache=resident,
                )  # fmt: skip

        yield Tuner(
            cache, fixture, schedule_space=schedule_space, level=options.levels[-1],
            threads=schedule_space.threads(options.threads), facts=facts, run_bytes=resident,
            architecture=schedule_space.architecture, seed=options.seed, min_gain=options.min_gain,
            selective=options.selective, within=options.within, listen=listen, propose=propose,
            pin=pin, backend=backend.name,
        )  # fmt: skip
