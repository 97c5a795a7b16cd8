"""Time the steps of a run, and bound it by a deadline."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["BisectionLimit", "Deadline", "StepProgress", "StepTimer"]

_log = logging.getLogger(__name__)
_BISECTION_SECONDS, _BISECTION_SHARE = 60.0, 0.18
"""Limits of a bisection: seconds, share of the time left.  After it, all suspects are dropped."""
_BISECTION_CHECKS, _BUSY_SHARE = 24, 0.5
"""Checks that a bisection may always make, and the share of the time left that they may take, so
that other processes do not decide which rewrites are dropped."""


class StepProgress(str):
    """Name of a step, of which ``done`` of ``total`` parts are finished (if ``total`` is not 0).

    ``best`` is the best verified result so far, in words.
    """

    done: int
    total: int
    best: str

    def __new__(cls, name: str, done: int = 0, total: int = 0, best: str = "") -> StepProgress:
        step = super().__new__(cls, name)
        step.done, step.total, step.best = done, total, best
        return step


@dataclass
class StepTimer:
    """Adds up seconds per step and knows the current step; ``now`` returns a clock's seconds."""

    progress: Callable[[str], None]
    seconds: dict[str, float] = field(default_factory=dict)
    now: Callable[[], float] = time.perf_counter
    best: str = ""
    """The best verified result so far, in words."""
    _name: str = ""
    _whole: str = ""
    _mark: tuple[float, float | None] = (0.0, None)
    """Seconds of all earlier steps, and when the current one began; None between steps."""

    def step(self, name: str) -> None:
        """End the current step and begin another."""
        now = self.now()
        before, start = self._mark
        if self._name and start is not None:
            self.seconds[self._name] = self.seconds.get(self._name, 0.0) + now - start
            before += now - start
            _log.debug("%s took %.2f s", self._name, now - start)
        self._name, self._whole = name.split(" ")[0], name
        self._mark = before, (now if name else None)
        if name:
            _log.info("%s", name)
            self.progress(StepProgress(name, best=self.best))

    def count(self, done: int, total: int) -> None:
        """Report how many parts of the current step are finished; does nothing between steps."""
        if self._whole:
            self.progress(StepProgress(self._whole, done, total, self.best))

    def pause(self) -> None:
        """End the current step."""
        self.step("")

    def spent(self) -> float:
        """Return the seconds of all steps so far, without the time between steps."""
        before, start = self._mark
        return before if start is None else before + self.now() - start


@dataclass
class Deadline:
    """Limits a run to ``budget`` seconds of the time that ``spent`` returns.

    One object is shared by all stages of a run.  ``cut`` collects, in sentences, what was left
    unfinished for lack of time.
    """

    budget: float = math.inf
    spent: Callable[[], float] = time.monotonic
    cut: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._end = self.spent() + self.budget

    @property
    def left(self) -> float:
        """Return the seconds left until the run, or the current ``within`` block, must end."""
        return max(self._end - self.spent(), 0.0)

    @property
    def over(self) -> bool:
        """Return True if no time is left."""
        return self.left <= 0.0

    def note(self, sentence: str) -> None:
        """Record, once, what was left unfinished."""
        if sentence not in self.cut:
            self.cut.append(sentence)

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Limit the block to ``seconds``, or to the time left if that is shorter."""
        outer = self._end
        self._end = min(outer, self.spent() + seconds)
        try:
            yield
        finally:
            self._end = outer

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Run the block without a time limit."""
        outer, self._end = self._end, math.inf
        try:
            yield
        finally:
            self._end = outer

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Exclude the block's time from the budget."""
        start = self.spent()
        with self.lifted():
            yield
        self._end += self.spent() - start


class BisectionLimit:
    """Limits one bisection by the number of its checks, and by a deadline.

    ``checks`` are those that it may make however long they take, within ``most`` seconds.
    """

    def __init__(self, deadline: Deadline) -> None:
        self._deadline, self._start = deadline, deadline.spent()
        self._end = self._start + min(_BISECTION_SECONDS, _BISECTION_SHARE * deadline.left)
        self.checks, self.most = _BISECTION_CHECKS, _BUSY_SHARE * deadline.left

    @property
    def seconds(self) -> float:
        """Return the seconds since it began."""
        return self._deadline.spent() - self._start

    @property
    def over(self) -> bool:
        """Return True if no check may be made any more."""
        late = self.checks <= 0 and self._deadline.spent() >= self._end
        return late or self._deadline.over
