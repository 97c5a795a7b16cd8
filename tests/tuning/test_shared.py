"""Many machines tune together; one that is killed costs a trial, nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tuning.postgres import postgres_url, why_not
from tuning.shared_worker import opened

from tracea_graph.errors import UsageError
from tracea_graph.ir import DType
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.tuning import Case, Problem, Task, TuningCache, Workload
from tracea_graph.tuning.identity import key_of
from tracea_graph.tuning.shared import Shared
from tracea_graph.tuning.together import tune_together
from tracea_graph.tuning.wire import case_from_json, case_to_json

TRIALS = 12
HERE = Path(__file__).resolve().parent
LOADS = (Workload(Problem(768, 768), 4, (128,)), Workload(Problem(768, 3072), 4, (128,)))
CASES = [Case(load.problem, 128) for load in LOADS]


def published(url: str, cache: Path, machine: str = "m") -> None:
    """The cases stand in the storage, no trial is done."""
    shared = Shared(url)
    with opened(Task((), (1,)), cache, machine) as made:
        for case in CASES:
            job = {"case": case_to_json(case), "threads": [1], "share": 0.5, "trials": TRIALS}
            shared.publish(key_of(made.about(case)), job)


class Worker:
    """A worker process, and what it said so far."""

    def __init__(self, url: str, cache: Path, machine: str = "m") -> None:
        env = {**os.environ, "PYTHONPATH": f"{HERE.parents[1]}"}
        self.log = cache.with_suffix(f".{time.monotonic_ns()}.log")
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "shared_worker.py"), url, str(cache), machine],
                env=env, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip

    @property
    def races(self) -> list[str]:
        lines = self.log.read_text().splitlines()
        return [line for line in lines if line.startswith("race ")]


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/studies.sqlite"


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    if reason := why_not():
        pytest.skip(reason)
    pytest.importorskip("psycopg", reason="psycopg is missing: pip install .[storage]")
    with postgres_url() as url:
        yield url


@pytest.mark.slow  # races four processes against each other: minutes on a loaded machine
def test_four_workers_on_postgresql_survive_the_death_of_one(
    postgres: str, tmp_path: Path
) -> None:
    cache = tmp_path / "tuning.sqlite"
    published(postgres, cache)
    workers = [Worker(postgres, tmp_path / f"{i}.sqlite") for i in range(4)]
    victim = workers[0]
    end = time.monotonic() + 400
    while len(victim.races) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    victim.process.send_signal(signal.SIGKILL)
    for worker in workers[1:]:
        assert worker.process.wait(timeout=600) == 0, worker.log.read_text()
    assert victim.process.wait() == -signal.SIGKILL
    assert all(len(worker.races) >= 1 for worker in workers), "all took part"
    shared = Shared(postgres)
    with opened(Task((), (1,)), cache, "m") as made:
        for case in CASES:
            study = shared.publish(key_of(made.about(case)), {})
            assert study.outcome is not None
            assert study.outcome.driver.row_chunk == 64
            assert study.outcome.gain == pytest.approx(1.3)
            done = {str(t.params) for t in study.trials if t.state.name == "COMPLETE"}
            states = {t.state.name for t in study.trials}
            assert len(done) == TRIALS, "what the dead worker had begun was done by another"
            assert states <= {"COMPLETE", "PRUNED", "FAIL"}, "nothing is left open"


def test_another_kind_of_machine_has_studies_of_its_own(sqlite: str, tmp_path: Path) -> None:
    published(sqlite, tmp_path / "a.sqlite", "m")
    other = Worker(sqlite, tmp_path / "b.sqlite", "other")
    assert other.process.wait(timeout=600) == 0, other.log.read_text()
    shared = Shared(sqlite)
    for machine, done in (("other", True), ("m", False)):
        with opened(Task((), (1,)), tmp_path / "c.sqlite", machine) as made:
            studies = [shared.publish(key_of(made.about(case)), {}) for case in CASES]
        assert [study.outcome is not None for study in studies] == [done] * len(CASES)


def test_what_others_found_comes_from_the_storage_once_and_from_the_cache_then(
    sqlite: str, tmp_path: Path
) -> None:
    published(sqlite, tmp_path / "a.sqlite")
    assert Worker(sqlite, tmp_path / "b.sqlite").process.wait(timeout=600) == 0
    cache, task = tmp_path / "a.sqlite", Task((), (1,), budget=60.0, storage=sqlite)
    for source in ("measured", "cache"):
        with opened(task, cache, "m") as made:
            found = {t.case: t for t in tune_together(made, LOADS[:1], task)}
        assert found[CASES[0]].source == source
        assert found[CASES[0]].driver.row_chunk == 64
    with TuningCache(cache) as known:
        assert any(entry.final for _, entry in known)


def test_cases_travel_as_json() -> None:
    chain = Chain(
        ("full", "row", "full"),
        (Step("where", (1, 0, 2)), Step("clip", (3, 0.0, float("inf")))),
        (4,),
        (DType.F32, DType.BOOL, DType.I64),
    )
    for problem in (Problem(8, 48, parts=(16, 32)), Problem(8, 48, "pairs", epilogue=chain)):
        case = Case(problem, 128)
        assert case_from_json(json.loads(json.dumps(case_to_json(case)))) == case


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://somewhere", "--storage takes a URL that begins with postgresql://"),
        ("postgresql://nobody@127.0.0.1:1/none", "127.0.0.1:1 cannot be used"),
        ("sqlite:////no/such/folder/x.sqlite", "cannot be used"),
    ],
)
def test_storages_that_cannot_be_used(url: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Shared(url)
