"""Time cache lookups: ``python -m models.cache_latency``.

A tuning cache of 10,000 entries in a new folder is asked for each of them, in a fixed order.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median, quantiles

from tracea_graph.config import Environment
from tracea_graph.hardware import profile_cpu
from tracea_graph.kernels.cpu.core_measurement import measure_core
from tracea_graph.tuning import CacheEntry, TuningCache

_ENTRIES, _TIMES = 10_000, 50


def _say(what: str, calls: list[Callable[[], object]]) -> None:
    ms = []
    for call in calls:
        start = time.perf_counter_ns()
        call()
        ms.append((time.perf_counter_ns() - start) * 1e-6)
    print(f"{what}: median {median(ms):.3f} ms, p99 {quantiles(ms, n=100)[-1]:.3f} ms")


def main() -> None:
    """Print medians and 99th percentiles."""
    keys = [f"{i:064x}" for i in range(_ENTRIES)]
    with tempfile.TemporaryDirectory() as folder:
        with TuningCache(Path(folder, "tuning.sqlite")) as cache:
            for key in keys:
                cache.put(key, CacheEntry({"schedule": {}, "gain": 1.0}, [], True, "a product"))
            random.Random(0).shuffle(keys)
            _say("a tuning result", [partial(cache.get, key) for key in keys])
        environment, cpu = Environment(cache=Path(folder)), profile_cpu()
        measure_core(cpu, environment)
        _say("this machine's figures", [partial(measure_core, cpu, environment)] * _TIMES)


if __name__ == "__main__":
    main()
