"""Studies shared by many machines, on optuna's storages.

A study is one case on one kind of machine.  Its name is the cache's key: equal machines share its
trials, others have separate studies.  A trial is one candidate's first comparison; the last trial,
the verdict, times the best candidates again and stores the outcome in the study.  The work left
follows from the trials alone: a worker begins any candidate that has no finished or running trial,
and if two begin one candidate at once, the trial with the lower number continues.  Thus a machine
may fail at any moment without leaving a half-initialized study.  A trial that stays unfinished for
long (its worker was killed) is given up and becomes available again.  All data are attributes of
the study and its trials, as JSON.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from warnings import catch_warnings, simplefilter

from tracea_graph.errors import UsageError
from tracea_graph.kernels.program import Schedule
from tracea_graph.tuning.candidate_sampling import (
    SEEDS,
    optuna_params,
    optuna_sampler,
    optuna_space,
)
from tracea_graph.tuning.schedule_search import EXHAUSTIVE, Study, StudyResult, Trial
from tracea_graph.tuning.schedule_space import ScheduleSpace
from tracea_graph.tuning.serialization import schedule_to_json

if TYPE_CHECKING:
    import optuna

__all__ = ["SharedStorage", "SharedStudy"]

_PREFIX = "tracea 3 "
"""Prefix of a study's name; its number rises with the format, which keeps old studies separate."""
_GRPC_PORT, _PROXY_SECONDS = 13000, 20.0
"""Optuna's default port, and the seconds a proxy may take to answer."""
_OPENINGS, _AGAIN_SECONDS = 5, 0.5
"""Attempts to open a storage; of several machines creating its tables at once, all but one fail.
"""
_CANDIDATE, _VERDICT = "candidate", "verdict"
"""The attribute that says what a trial is about: a schedule's settings, or the verdict."""
_EXTRAS = {"postgresql": "psycopg", "mysql": "pymysql", "grpc": "grpcio"}


class SharedStorage:
    """Tuning studies in a database that several machines use.

    ``url`` begins with ``postgresql://``, ``mysql://``, ``sqlite:///`` or ``grpc://HOST:PORT``
    (optuna's proxy).  A trial or verdict is given up if its state does not change for
    ``lost_after`` seconds: its machine is assumed to be dead.  Raises UsageError for a storage
    that cannot be used.
    """

    def __init__(
        self, url: str, schedule_space: ScheduleSpace, *, lost_after: float = 60.0, seed: int = 0
    ) -> None:
        self.schedule_space, self.lost_after, self.seed = schedule_space, lost_after, seed
        self._seen: dict[tuple[str, str], float] = {}
        with _sentences(url):
            self.storage = _storage(url)

    def publish(self, key: str, task: Mapping[str, Any]) -> SharedStudy:
        """Return the study with a key; create it if it is missing.

        ``task`` describes the case for the workers that find the study.
        """
        import optuna

        study = optuna.create_study(
            storage=self.storage, study_name=_PREFIX + key, direction="maximize",
            load_if_exists=True,
        )  # fmt: skip
        if "task" not in study.user_attrs:
            study.set_user_attr("task", json.dumps(task))
        return SharedStudy(self, study)

    def tasks(self) -> Iterator[dict[str, Any]]:
        """Yield the ``task`` of every published study; unreadable ones are left out."""
        for frozen in self.storage.get_all_studies():
            if frozen.study_name.startswith(_PREFIX) and "task" in frozen.user_attrs:
                with suppress(ValueError):
                    yield json.loads(frozen.user_attrs["task"])

    def lost(self, what: str, state: str) -> bool:
        """Return whether ``what`` has been in one ``state`` for more than ``lost_after`` seconds.

        The time since this process first saw the state is measured, so clocks of machines need not
        agree.
        """
        first = self._seen.setdefault((what, state), time.monotonic())
        return time.monotonic() - first > self.lost_after


class SharedStudy:
    """One shared study; pass it as the ``search`` of a :class:`Study`."""

    def __init__(self, shared: SharedStorage, study: optuna.Study) -> None:
        self._shared, self._study = shared, study
        self._verdict: optuna.Trial | None = None

    @property
    def trials(self) -> list[optuna.trial.FrozenTrial]:
        """Return all trials of all workers."""
        return self._study.get_trials(deepcopy=False)

    @property
    def outcome(self) -> StudyResult | None:
        """Return the stored verdict, without trials; None if there is none."""
        try:
            found = json.loads(self._study.user_attrs["outcome"])
            schedule = self._shared.schedule_space.schedule_from_json(found["schedule"])
            return StudyResult(schedule, float(found["gain"]), bool(found["final"]), ())
        except (KeyError, TypeError, ValueError):
            return None

    def conclude(self, outcome: StudyResult) -> None:
        """Store the verdict for all workers."""
        schedule, gain, final = schedule_to_json(outcome.schedule), outcome.gain, outcome.final
        found = {"schedule": schedule, "gain": gain, "final": final}
        self._study.set_user_attr("outcome", json.dumps(found))
        self._end_verdict()

    def __call__(self, study: Study) -> bool:
        """Run trials while there are any; return True if this worker decides the verdict."""
        import optuna

        many = len(study.candidates) > EXHAUSTIVE
        first = study.candidates[: min(SEEDS, study.trials) if many else study.trials]
        if many:
            self._study.sampler = optuna_sampler(self._shared.seed)
        self._end_verdict()  # a verdict interrupted by lack of time
        while study.has_time() and self.outcome is None:
            self._give_up_lost()
            trials = self.trials
            taken = {t.user_attrs.get(_CANDIDATE) for t in trials if t.state in self._alive}
            missing = next((c for c in first if _candidate_id(c) not in taken), None)
            if missing is not None:
                self._take(study, missing)
            elif many and self._wants_more(study, trials):
                self._sample(study)
            elif any(t.state is optuna.trial.TrialState.RUNNING for t in trials):
                return False  # other workers are running trials
            elif (verdict := self._begin(_VERDICT)) is not None:
                self._verdict = verdict
                return self._adopted(study)
        return False

    @property
    def judging(self) -> bool:
        """True while this worker decides the verdict."""
        return self._verdict is not None

    # ---- trials ------------------------------------------------------------------------

    @cached_property
    def _alive(self) -> tuple[optuna.trial.TrialState, ...]:
        """States of a trial that must not be run again."""
        import optuna

        return optuna.trial.TrialState.RUNNING, optuna.trial.TrialState.COMPLETE

    def _begin(self, candidate: str, **about: Any) -> optuna.Trial | None:
        """Begin a trial of a candidate; None if another worker began it meanwhile.

        ``about`` are its parameters and their distributions.  Trials are numbered consecutively,
        so all trials with lower numbers are visible.
        """
        import optuna

        storage, states = self._study._storage, optuna.trial.TrialState
        plan = optuna.trial.create_trial(
            state=states.RUNNING, user_attrs={_CANDIDATE: candidate}, **about
        )
        own = storage.create_new_trial(self._study._study_id, template_trial=plan)
        trial = optuna.trial.Trial(self._study, own)
        rivals = (t for t in self.trials if t.state in self._alive and t.number < trial.number)
        if any(t.user_attrs.get(_CANDIDATE) == candidate for t in rivals):
            self._study.tell(trial, state=states.FAIL, skip_if_finished=True)
            return None
        return trial

    def _take(self, study: Study, schedule: Schedule) -> None:
        """Measure one candidate, unless another worker has just begun it."""
        space = optuna_space(study.candidates)
        trial = self._begin(
            _candidate_id(schedule), params=optuna_params(schedule), distributions=space
        )
        if trial is not None:
            self._measure(study, trial, schedule)

    def _wants_more(self, study: Study, trials: Sequence[optuna.trial.FrozenTrial]) -> bool:
        """Return True if the sampler should propose another candidate."""
        import optuna

        pruned = sum(t.state is optuna.trial.TrialState.PRUNED for t in trials)
        alive = sum(t.state in self._alive for t in trials)
        return alive < study.trials and pruned < study.trials

    def _sample(self, study: Study) -> None:
        """Measure a candidate that the sampler proposes; other configurations are infeasible."""
        import optuna

        trial = self._study.ask(optuna_space(study.candidates))
        schedule = study.default.having(**trial.params)
        if schedule in set(study.candidates):
            trial.set_user_attr(_CANDIDATE, _candidate_id(schedule))
            self._measure(study, trial, schedule)
        else:
            self._study.tell(trial, state=optuna.trial.TrialState.PRUNED)

    def _measure(self, study: Study, trial: optuna.Trial, schedule: Schedule) -> None:
        """Measure a candidate; a trial without a result fails, so that others can repeat it."""
        import optuna

        states, score = optuna.trial.TrialState, None
        try:
            score = study.first_score(schedule)
            if score is not None:
                evidence = json.dumps(study.trial(schedule).to_json())
                try:
                    trial.set_user_attr("evidence", evidence)
                    self._study.tell(trial, score)
                except (optuna.exceptions.UpdateFinishedTrialError, ValueError):
                    self._add(study, schedule, score, evidence)  # given up by others meanwhile
        finally:
            if score is None:
                with suppress(Exception):  # the storage may be what failed
                    self._study.tell(trial, state=states.FAIL, skip_if_finished=True)

    def _add(self, study: Study, schedule: Schedule, score: float, evidence: str) -> None:
        """Store what was measured in a trial that others gave up."""
        import optuna

        self._study.add_trial(
            optuna.trial.create_trial(
                value=score, params=optuna_params(schedule),
                distributions=optuna_space(study.candidates),
                user_attrs={_CANDIDATE: _candidate_id(schedule), "evidence": evidence},
            )
        )  # fmt: skip

    def _give_up_lost(self) -> None:
        """Mark trials of apparently dead workers as failed."""
        import optuna

        states = optuna.trial.TrialState
        for trial in self._study.get_trials(deepcopy=False, states=(states.RUNNING,)):
            if self._shared.lost(f"{self._study.study_name} {trial.number}", "running"):
                with suppress(optuna.exceptions.UpdateFinishedTrialError):  # others were first
                    self._study._storage.set_trial_state_values(trial._trial_id, states.FAIL)

    # ---- verdict -----------------------------------------------------------------------

    def _end_verdict(self) -> None:
        """End the verdict's trial as failed, because it measured no candidate."""
        import optuna

        if self._verdict is not None:
            failed = optuna.trial.TrialState.FAIL
            self._study.tell(self._verdict, state=failed, skip_if_finished=True)
            self._verdict = None

    def _adopted(self, study: Study) -> bool:
        """Take over all workers' trials."""
        for trial in self.trials:
            with suppress(KeyError, TypeError, ValueError):  # a trial without times, or damaged
                evidence = json.loads(trial.user_attrs["evidence"])
                study.adopt(Trial.from_json(evidence, self._shared.schedule_space))
        return True


def _candidate_id(schedule: Schedule) -> str:
    return " ".join(map(str, astuple(schedule)))


def _storage(url: str) -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    place = urlsplit(url)
    if place.scheme == "grpc":
        with catch_warnings():
            simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            proxy = optuna.storages.GrpcStorageProxy(
                host=place.hostname or "localhost", port=place.port or _GRPC_PORT
            )
        proxy.wait_server_ready(timeout=_PROXY_SECONDS)
        return proxy
    for plain, dialect in (("postgresql", "postgresql+psycopg"), ("mysql", "mysql+pymysql")):
        if place.scheme == plain:
            url = dialect + url[len(plain) :]
    return _database(url)


def _database(url: str) -> Any:
    """Open a database as storage; the first worker creates its tables."""
    import optuna
    from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError

    for attempt in range(1, _OPENINGS + 1):
        try:
            return optuna.storages.RDBStorage(url, engine_kwargs={"pool_pre_ping": True})
        except DBAPIError as error:
            another = isinstance(error, IntegrityError | ProgrammingError)
            if attempt == _OPENINGS or not (another or "already exists" in str(error)):
                raise
            time.sleep(_AGAIN_SECONDS)
    raise AssertionError("the last attempt returns or raises")


@contextmanager
def _sentences(url: str) -> Iterator[None]:
    """Turn exceptions raised while a storage is opened into UsageErrors."""
    scheme = urlsplit(url).scheme.partition("+")[0]
    known = (*_EXTRAS, "sqlite")
    if scheme not in known:
        raise UsageError(
            f"--storage takes a URL that begins with {', '.join(f'{k}://' for k in known)}"
        )
    try:
        yield
    except ImportError as error:
        raise UsageError(
            f"{scheme} storage needs {_EXTRAS.get(scheme, error.name)}; "
            f'pip install "tracea-graph[storage]"'
        ) from None
    except Exception as error:
        place = urlsplit(url)
        at = f"{place.hostname or place.path}{f':{place.port}' if place.port else ''}"
        line = next(iter(str(error).splitlines()), type(error).__name__)
        raise UsageError(f"the storage at {at} cannot be used: {line}") from None
