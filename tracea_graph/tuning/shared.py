"""Studies that many machines share, on optuna's own storages.

A study is one case on one kind of machine: its name is the cache's key, so equal machines share
its trials and others have studies of their own.  A trial is one candidate's first race.  Workers
take waiting trials; one that stays unfinished for long (its worker was killed) is given up and
taken again.  When all are in, one worker claims the study, judges the best and leaves the outcome
in the study.  Everything is kept in attributes of the study and its trials, as JSON.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import astuple
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tracea_graph.errors import UsageError
from tracea_graph.ops.program import GemmDriver
from tracea_graph.tuning.sampling import SEEDS, params_of, sampler, space_of
from tracea_graph.tuning.study import EXHAUSTIVE, Outcome, Study, Trial

if TYPE_CHECKING:
    import optuna

__all__ = ["Shared", "SharedStudy"]

_PREFIX = "tracea "
_GRPC_PORT = 13000
_CLAIM_SECONDS = 0.3
"""How long two claims of one study may overlap."""
_EXTRAS = {"postgresql": "psycopg", "mysql": "pymysql", "grpc": "grpcio"}


class Shared:
    """The studies of a storage ``url``: ``postgresql://``, ``mysql://``, ``sqlite:///`` or
    ``grpc://HOST:PORT`` (optuna's proxy).

    A trial or a claim that stays as it is for ``lost_after`` seconds belongs to nobody any more.
    Raises UsageError for a storage that cannot be used.
    """

    def __init__(self, url: str, *, lost_after: float = 60.0, seed: int = 0) -> None:
        self.lost_after, self.seed, self.token = lost_after, seed, uuid.uuid4().hex
        self._seen: dict[tuple[str, str], float] = {}
        with _sentences(url):
            self.storage = _storage(url)

    def publish(self, key: str, job: Mapping[str, Any]) -> SharedStudy:
        """The study of a case under its key, made if there is none; ``job`` tells it to others."""
        import optuna

        study = optuna.create_study(
            storage=self.storage, study_name=_PREFIX + key, sampler=sampler(self.seed),
            direction="maximize", load_if_exists=True,
        )  # fmt: skip
        if "job" not in study.user_attrs:
            study.set_user_attr("job", json.dumps(job))
        return SharedStudy(self, study)

    def jobs(self) -> Iterator[dict[str, Any]]:
        """What anybody published, each problem once per key; unreadable ones are left out."""
        for frozen in self.storage.get_all_studies():
            if frozen.study_name.startswith(_PREFIX) and "job" in frozen.user_attrs:
                with suppress(ValueError):
                    yield json.loads(frozen.user_attrs["job"])

    def lost(self, what: str, state: str) -> bool:
        """True once ``what`` was seen in the same state for too long; clocks need not agree."""
        first = self._seen.setdefault((what, state), time.monotonic())
        return time.monotonic() - first > self.lost_after


class SharedStudy:
    """One study; use it as a study's ``search``."""

    def __init__(self, shared: Shared, study: optuna.Study) -> None:
        self._shared, self._study = shared, study
        self.judging = False
        """True once this worker is the one to judge."""

    @property
    def trials(self) -> list[optuna.trial.FrozenTrial]:
        """All trials, whoever has them."""
        return self._study.get_trials(deepcopy=False)

    @property
    def outcome(self) -> Outcome | None:
        """What the one who judged found, without the trials."""
        try:
            found = json.loads(self._study.user_attrs["outcome"])
            return Outcome(GemmDriver(*found["driver"]), float(found["gain"]), True, ())
        except (KeyError, TypeError, ValueError):
            return None

    def conclude(self, outcome: Outcome) -> None:
        """Tell the outcome to all."""
        found = {"driver": astuple(outcome.driver), "gain": outcome.gain}
        self._study.set_user_attr("outcome", json.dumps(found))

    def __call__(self, study: Study) -> bool:
        """Take trials while there are any; True for the one worker that is to judge."""
        import optuna

        states = optuna.trial.TrialState
        self._fill(study)
        while study.has_time():
            self._give_up_lost()
            trials = self.trials
            if self._wants_more(study, trials):
                self._take(study)
            elif any(t.state in (states.RUNNING, states.WAITING) for t in trials):
                return False  # others are at it
            else:
                self.judging = self._claims()
                return self.judging and self._adopted(study)
        return False

    # ---- trials ------------------------------------------------------------------------

    def _fill(self, study: Study) -> None:
        """Enqueue the candidates to begin with, once."""
        if "filled" in self._study.user_attrs:
            return
        self._study.set_user_attr("filled", self._shared.token)
        many = len(study.candidates) > EXHAUSTIVE
        for candidate in study.candidates[: min(SEEDS, study.trials) if many else study.trials]:
            self._study.enqueue_trial(params_of(candidate), skip_if_exists=True)

    def _wants_more(self, study: Study, trials: list[optuna.trial.FrozenTrial]) -> bool:
        """Whether there is a trial to take."""
        import optuna

        states = optuna.trial.TrialState
        count = {s: sum(t.state is s for t in trials) for s in states}
        if count[states.WAITING]:
            return True
        sampled = len(study.candidates) > EXHAUSTIVE
        done = count[states.COMPLETE] + count[states.RUNNING]
        return sampled and done < study.trials and count[states.PRUNED] < study.trials

    def _take(self, study: Study) -> None:
        """Race one candidate; one that is no candidate is infeasible."""
        import optuna

        states = optuna.trial.TrialState
        trial = self._study.ask(space_of(study.candidates))
        driver, score = GemmDriver(**trial.params), None
        try:
            if driver not in set(study.candidates):
                self._study.tell(trial, state=states.PRUNED)
                return
            score = study.first_score(driver)
            if score is not None:
                evidence = json.dumps(study.trial(driver).to_json())
                with suppress(optuna.exceptions.UpdateFinishedTrialError):  # given up meanwhile
                    trial.set_user_attr("evidence", evidence)
                self._study.tell(trial, score, skip_if_finished=True)
        finally:
            if score is None and driver in set(study.candidates):
                with suppress(Exception):  # the storage may be what failed
                    self._study.tell(trial, state=states.FAIL, skip_if_finished=True)
                    self._study.enqueue_trial(trial.params)

    def _give_up_lost(self) -> None:
        """Trials whose worker seems dead are taken from it and wait again."""
        import optuna

        states = optuna.trial.TrialState
        for trial in self._study.get_trials(deepcopy=False, states=(states.RUNNING,)):
            if not self._shared.lost(f"{self._study.study_name} {trial.number}", "running"):
                continue
            with suppress(optuna.exceptions.UpdateFinishedTrialError):  # another was first
                if self._shared.storage.set_trial_state_values(trial._trial_id, states.FAIL):
                    fixed = trial.system_attrs.get("fixed_params", {})
                    self._study.enqueue_trial({**fixed, **trial.params})

    # ---- judging -----------------------------------------------------------------------

    def _claims(self) -> bool:
        """Whether this worker is the one to judge: the last to claim a study nobody else has."""
        holder, own = self._study.user_attrs.get("judge", ""), self._shared.token
        if holder == own:
            return True
        if holder and not self._shared.lost(self._study.study_name, f"judged by {holder}"):
            return False
        self._study.set_user_attr("judge", own)
        time.sleep(_CLAIM_SECONDS)
        return bool(self._study.user_attrs.get("judge") == own)

    def _adopted(self, study: Study) -> bool:
        """Take over everybody's trials."""
        for trial in self.trials:
            with suppress(KeyError, TypeError, ValueError):  # a trial without races, or spoilt
                study.adopt(Trial.from_json(json.loads(trial.user_attrs["evidence"])))
        return True


def _storage(url: str) -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    place = urlsplit(url)
    if place.scheme == "grpc":
        return optuna.storages.GrpcStorageProxy(
            host=place.hostname or "localhost", port=place.port or _GRPC_PORT
        )
    for plain, driver in (("postgresql", "postgresql+psycopg"), ("mysql", "mysql+pymysql")):
        if place.scheme == plain:
            url = driver + url[len(plain) :]
    return optuna.storages.RDBStorage(url, engine_kwargs={"pool_pre_ping": True})


@contextmanager
def _sentences(url: str) -> Iterator[None]:
    """Whatever a storage raises when it is opened becomes a sentence."""
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
