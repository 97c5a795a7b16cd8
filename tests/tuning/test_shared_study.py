"""Many machines tune together; one that is killed costs a trial, nothing else."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.tuning import mariadb
from tests.tuning.postgres import postgres_url, why_not
from tests.tuning.servers import serving
from tests.tuning.shared_worker import Machine, opened
from tracea_graph.check.timing_statistics import PairedTimes
from tracea_graph.errors import UsageError
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.schedule import GemmSchedule
from tracea_graph.kernels.cpu.schedules import SCHEDULE_SPACE
from tracea_graph.kernels.cpu.schedules.gemm_problem import GemmProblem
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.target import BACKENDS
from tracea_graph.tuning import Case, Tunable, Tuner, TuningCache, TuningOptions, Workload
from tracea_graph.tuning.cache_key import result_cache_key
from tracea_graph.tuning.candidate_sampling import optuna_params, optuna_space
from tracea_graph.tuning.candidate_selection import candidates_to_measure
from tracea_graph.tuning.distributed_tuning import run_published_trials, tune_distributed
from tracea_graph.tuning.serialization import case_from_json, case_to_json
from tracea_graph.tuning.study_across_machines import SharedStorage, _candidate_id
from tracea_graph.tuning.task_priority import TuningTask

TRIALS = 12
HERE = Path(__file__).resolve().parent
LOADS = (Workload(GemmProblem(768, 768), 4, (128,)), Workload(GemmProblem(768, 3072), 4, (128,)))
CASES = [Case(load.problem, 128) for load in LOADS]


def _place(schedule: GemmSchedule, schedules: Sequence[GemmSchedule]) -> dict[str, Any]:
    return {"params": optuna_params(schedule), "distributions": optuna_space(schedules)}


def published(url: str, cache: Path, machine: str = "m", backend: str = "cpu") -> None:
    """The cases fixture in the storage, no trial is done."""
    shared = SharedStorage(url, SCHEDULE_SPACE)
    with opened(TuningOptions((), (1,)), cache, machine) as made:
        for case in CASES:
            task = {
                "backend": backend,
                "case": case_to_json(case, SCHEDULE_SPACE),
                "threads": [1],
                "share": 0.5,
                "trials": TRIALS,
            }
            shared.publish(result_cache_key(made.about(case)), task)


class Worker:
    """A worker process, and what it said so far.

    ``more`` are a folder for workers to meet in, how many of them do, and which one stops there.
    """

    def __init__(self, url: str, cache: Path, machine: str = "m", *more: object) -> None:
        env = {**os.environ, "PYTHONPATH": f"{HERE.parents[1]}"}
        self.log = cache.with_suffix(f".{time.monotonic_ns()}.log")
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "shared_worker.py"), url, str(cache), machine,
                 *map(str, more)],
                env=env, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip

    @property
    def timings(self) -> list[str]:
        lines = self.log.read_text().splitlines()
        return [line for line in lines if line.startswith("compare ")]


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


@pytest.mark.slow
def test_four_workers_on_postgresql_survive_the_death_of_one(
    postgres: str, tmp_path: Path
) -> None:
    """All four are in the middle of a trial when one of them dies."""
    cache, place = tmp_path / "tuning.sqlite", tmp_path / "place"
    place.mkdir()
    published(postgres, cache)
    workers = [
        Worker(postgres, tmp_path / f"{i}.sqlite", "m", place, 4, "works" if i else "ends")
        for i in range(4)
    ]
    victim = workers[0]
    while len([*place.iterdir()]) < 4:
        assert all(w.process.poll() is None for w in workers), [w.log.read_text() for w in workers]
        time.sleep(0.05)
    victim.process.send_signal(signal.SIGKILL)
    for worker in workers[1:]:
        assert worker.process.wait(timeout=1800) == 0, worker.log.read_text()
    assert victim.process.wait() == -signal.SIGKILL
    assert all(len(worker.timings) >= 1 for worker in workers), "all took part"
    shared = SharedStorage(postgres, SCHEDULE_SPACE)
    with opened(TuningOptions((), (1,)), cache, "m") as made:
        for case in CASES:
            study = shared.publish(result_cache_key(made.about(case)), {})
            assert study.outcome is not None
            assert study.outcome.schedule.mc == 64
            assert study.outcome.gain == pytest.approx(1.3)
            done = {str(t.params) for t in study.trials if t.state.name == "COMPLETE"}
            states = {t.state.name for t in study.trials}
            assert len(done) == TRIALS, "what the dead worker had begun was done by another"
            assert states <= {"COMPLETE", "PRUNED", "FAIL"}, "nothing is left open"


def test_machines_that_meet_at_an_empty_database_lay_it_out_once(postgres: str) -> None:
    import psycopg

    with psycopg.connect(postgres, autocommit=True) as server:
        server.execute("CREATE DATABASE empty")
    url = postgres.replace("/postgres", "/empty")
    with ThreadPoolExecutor(4) as pool:
        opened_by = list(pool.map(SharedStorage, [url] * 4, [SCHEDULE_SPACE] * 4))
    for shared in opened_by:
        shared.publish("k", {"case": 1})
        assert list(shared.tasks()) == [{"case": 1}]


@pytest.mark.parametrize("begun", [0, 1, TRIALS - 1])
def test_a_study_that_its_founder_left_half_set_up_is_completed(
    sqlite: str, tmp_path: Path, begun: int
) -> None:
    """Whatever a machine had done when it died, another finds what is missing and takes it."""
    shared = SharedStorage(sqlite, SCHEDULE_SPACE, lost_after=0.0)
    with opened(TuningOptions((), (1,)), tmp_path / "a.sqlite", "m") as made:
        study = shared.publish(result_cache_key(made.about(CASES[0])), {})
        schedules = candidates_to_measure(CASES[0], SCHEDULE_SPACE, "avx512", (1,), TRIALS)
        for schedule in schedules[:begun]:
            assert study._begin(_candidate_id(schedule), **_place(schedule, schedules)) is not None
        tuned = made.study(TuningTask(CASES[0], True, 1.0), Machine(), math.inf, TRIALS, study)
    assert study.judging
    assert tuned.schedule.mc == 64
    done = [t for t in study.trials if t.state.name == "COMPLETE"]
    assert len(done) == TRIALS


def test_of_two_that_begin_the_same_one_goes_on(sqlite: str) -> None:
    """The lower number does, however the two take turns."""
    one, other = (SharedStorage(sqlite, SCHEDULE_SPACE).publish("k", {}) for _ in range(2))
    assert one._begin("1 2 3") is not None
    assert other._begin("1 2 3") is None
    assert other._begin("3 2 1") is not None
    states = [t.state.name for t in one.trials]
    assert states == ["RUNNING", "FAIL", "RUNNING"]


def test_what_was_measured_in_a_trial_given_up_is_kept(sqlite: str, tmp_path: Path) -> None:
    """A machine so slow that every trial of it is given up still gets done."""
    slow, other = (SharedStorage(sqlite, SCHEDULE_SPACE, lost_after=0.0) for _ in range(2))
    with opened(TuningOptions((), (1,)), tmp_path / "a.sqlite", "m") as made:
        key = result_cache_key(made.about(CASES[0]))
        watching = other.publish(key, {})

        class Watched(Machine):
            def compare(self, *args: Any) -> PairedTimes:
                for _ in range(2):  # seen twice, a trial counts as lost
                    watching._give_up_lost()
                return super().compare(*args)

        study = slow.publish(key, {})
        tuned = made.study(TuningTask(CASES[0], True, 1.0), Watched(), math.inf, TRIALS, study)
    assert tuned.schedule.mc == 64
    assert {t.state.name for t in study.trials[:-1]} == {"COMPLETE", "FAIL"}


@pytest.mark.slow  # measures in several processes
def test_another_kind_of_machine_has_studies_of_its_own(sqlite: str, tmp_path: Path) -> None:
    published(sqlite, tmp_path / "a.sqlite", "m")
    other = Worker(sqlite, tmp_path / "b.sqlite", "other")
    assert other.process.wait(timeout=1800) == 0, other.log.read_text()
    shared = SharedStorage(sqlite, SCHEDULE_SPACE)
    for machine, done in (("other", True), ("m", False)):
        with opened(TuningOptions((), (1,)), tmp_path / "c.sqlite", machine) as made:
            studies = [shared.publish(result_cache_key(made.about(case)), {}) for case in CASES]
        assert [study.outcome is not None for study in studies] == [done] * len(CASES)


@pytest.mark.slow  # measures in several processes
def test_what_others_found_comes_from_the_storage_once_and_from_the_cache_then(
    sqlite: str, tmp_path: Path
) -> None:
    published(sqlite, tmp_path / "a.sqlite")
    assert Worker(sqlite, tmp_path / "b.sqlite").process.wait(timeout=1800) == 0
    cache, options = tmp_path / "a.sqlite", TuningOptions((), (1,), budget=1e6, storage=sqlite)
    for source in ("measured", "cache"):
        with opened(options, cache, "m") as made:
            found = {t.case: t for t in tune_distributed(made, LOADS[:1], options)}
        assert found[CASES[0]].source == source
        assert found[CASES[0]].schedule.mc == 64
    with TuningCache(cache) as known:
        assert any(entry.final for _, entry in known)


def test_a_worker_leaves_the_tasks_of_other_backends_alone(sqlite: str, tmp_path: Path) -> None:
    published(sqlite, tmp_path / "a.sqlite", backend="tpu")
    made: list[TuningOptions] = []

    def make(own: TuningOptions, backend: Tunable) -> AbstractContextManager[Tuner]:
        made.append(own)
        return opened(own, tmp_path / "b.sqlite", "m")

    options = TuningOptions((), budget=0.0, storage=sqlite)
    assert run_published_trials(options, BACKENDS, make) == 0 and not made


def test_cases_travel_as_json() -> None:
    chain = Chain(
        ("full", "row", "full"),
        (Step("where", (1, 0, 2)), Step("clip", (3, 0.0, float("inf")))),
        (4,),
        (DType.F32, DType.BOOL, DType.I64),
    )
    for problem in (
        GemmProblem(8, 48, parts=(16, 32)),
        GemmProblem(8, 48, "vnni2", epilogue=chain),
    ):
        case = Case(problem, 128)
        assert (
            case_from_json(
                json.loads(json.dumps(case_to_json(case, SCHEDULE_SPACE))), SCHEDULE_SPACE
            )
            == case
        )


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
        SharedStorage(url, SCHEDULE_SPACE)


@contextmanager
def proxy(url: str) -> Iterator[str]:
    """optuna's gRPC proxy of a storage, in a process of its own."""
    code = (
        "import sys, optuna; from optuna.storages import RDBStorage, run_grpc_proxy_server;"
        "run_grpc_proxy_server(RDBStorage(sys.argv[1]), host='127.0.0.1', port=int(sys.argv[2]))"
    )

    def start(port: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", code, url, str(port)])

    with serving(start) as port:
        yield f"grpc://127.0.0.1:{port}"


def test_machines_tune_together_through_a_grpc_proxy(sqlite: str, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="grpcio is missing: pip install .[storage]")
    with proxy(sqlite) as url:
        tune_through(url, tmp_path)


@pytest.mark.slow  # sets up a server
def test_machines_tune_together_on_mariadb(tmp_path: Path) -> None:
    if reason := mariadb.why_not():
        pytest.skip(reason)
    pytest.importorskip("pymysql", reason="pymysql is missing: pip install .[storage]")
    with mariadb.mariadb_url() as url:
        tune_through(url, tmp_path)


def tune_through(url: str, folder: Path) -> None:
    """One machine measures, another finds what it found."""
    found = []
    for name in ("a", "b"):
        options = TuningOptions((), (1,), budget=1e6, storage=url)
        with opened(options, folder / f"{name}.sqlite", "m") as made:
            found += [t for t in tune_distributed(made, LOADS[:1], options) if t.case == CASES[0]]
    assert [t.schedule.mc for t in found] == [64, 64]
    assert [t.why for t in found] == ["", "with others"]
    study = SharedStorage(url, SCHEDULE_SPACE).publish(result_cache_key(made.about(CASES[0])), {})
    done = [t for t in study.trials if t.state.name == "COMPLETE"]
    assert len(done) == TRIALS
