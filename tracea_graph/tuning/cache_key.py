"""Everything a tuning result depends on, as text; the cache's key is a digest of it.

The machine (processor, instruction set, caches), the compiler and its flags, ONNX Runtime, this
package's version, the sources of the measured code, the problem, its row count and dtype, the
thread counts, and the default schedule that a candidate had to beat.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tracea_graph.config import Environment
from tracea_graph.hardware import fingerprint_hash
from tracea_graph.toolchain import find_compiler
from tracea_graph.toolchain.object_cache import sha256_of_parts
from tracea_graph.tuning.schedule_space import ScheduleSpace
from tracea_graph.tuning.tuning_problem import Case, Problem, default_schedule
from tracea_graph.version import VERSION

__all__ = [
    "case_facts",
    "differs_in_machine_only",
    "machine_facts",
    "nearest_result_difference",
    "result_cache_key",
]  # fmt: skip

_PROBLEM = ("op", "epilogue", "rows", "dtype")
_MACHINE = ("machine", "compiler", "onnxruntime")
"""Facts about where a result was measured."""
_WORDS = {
    "machine": "on another machine",
    "compiler": "with another compiler",
    "onnxruntime": "with another ONNX Runtime",
    "tracea": "by another version of tracea",
    "kernels": "with other kernel sources",
    "isa": "for another instruction set",
    "threads": "at other thread counts",
    "weights": "with other weights in the cache",
    "default": "against another default",
}


def machine_facts(fingerprint: Mapping[str, Any], environment: Environment) -> dict[str, str]:
    """Return facts about the machine and its software that tuning results depend on.

    ``fingerprint`` is the backend's description of the machine.  Raises BuildError if there is no
    working compiler.
    """
    try:
        runtime = version("onnxruntime")
    except PackageNotFoundError:
        runtime = "unknown"
    compiler = find_compiler(environment)
    told = f"{compiler.identity.splitlines()[0]} [{sha256_of_parts(compiler.identity)[:8]}]"
    return {
        "machine": f"{fingerprint['model']} [{fingerprint_hash(fingerprint)}]",
        "compiler": " ".join((told, *map(shlex.quote, compiler.flags))),
        "onnxruntime": runtime,
        "tracea": VERSION,
    }


def case_facts(
    case: Case,
    facts: Mapping[str, str],
    schedule_space: ScheduleSpace,
    level: str,
    threads: Sequence[int],
) -> dict[str, str]:
    """Return everything that the tuning result of a case depends on, as texts by name.

    ``facts`` are those of :func:`machine_facts`.
    """
    problem = case.problem
    return {
        **facts,
        "kernels": schedule_space.text_of(problem, level),
        "isa": level,
        "threads": ",".join(map(str, threads)),
        "op": " ".join(filter(None, map(_word, sorted(_shape(problem).items())))),
        "epilogue": problem.epilogue.text if problem.epilogue else "",
        "rows": str(case.rows),
        "dtype": problem.dtype,
        "default": str(default_schedule(case)),
    }


def differs_in_machine_only(about: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Return whether two results differ in nothing but the machine they were measured on."""
    return {**other, **{n: about[n] for n in _MACHINE}} == dict(about)


def result_cache_key(about: Mapping[str, str]) -> str:
    """Return the cache's key: a digest of ``about``."""
    return sha256_of_parts(*(f"{name}={value}" for name, value in sorted(about.items())))


def nearest_result_difference(
    about: Mapping[str, str], others: Iterable[Mapping[str, str]]
) -> str:
    """Return, as a clause, how the most similar cached result differs from a case.

    ``about`` describes the case, ``others`` the cached results.  The clause is "never measured" if
    no result is of the same problem.
    """
    same = [o for o in others if all(o.get(name) == about[name] for name in _PROBLEM)]
    if not same:
        return "never measured"
    changes = [[w for n, w in _WORDS.items() if o.get(n) != about.get(n)] for o in same]
    nearest = min(changes, key=lambda words: len(words))
    return f"measured {' and '.join(nearest)}"


def _shape(problem: Problem) -> dict[str, Any]:
    return {n: v for n, v in problem.key.items() if n != "epilogue"}


def _word(item: tuple[str, Any]) -> str:
    name, value = item
    return f"{name}={value}" if value != "" else ""
