"""Time the steps of a run, and bound it by a deadline."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["Deadline", "StepTimer"]

_log = logging.getLogger(__name__)


@dataclass
class StepTimer:
    """Names the step under way and adds up seconds per step; ``now`` tells seconds."""

    progress: Callable[[str], None]
    seconds: dict[str, float] = field(default_factory=dict)
    now: Callable[[], float] = time.perf_counter
    _name: str = ""
    _mark: tuple[float, float | None] = (0.0, None)
    """Seconds of the steps before, and when the present one began; None between steps."""

    def step(self, name: str) -> None:
        """The step before ends here."""
        now = self.now()
        before, start = self._mark
        if self._name and start is not None:
            self.seconds[self._name] = self.seconds.get(self._name, 0.0) + now - start
            before += now - start
            _log.debug("%s took %.2f s", self._name, now - start)
        self._name = name.split(" ")[0]
        self._mark = before, (now if name else None)
        if name:
            _log.info("%s", name)
            self.progress(name)

    def pause(self) -> None:
        """No step is under way."""
        self.step("")

    def spent(self) -> float:
        """Seconds of all steps so far; those between steps belong to others."""
        before, start = self._mark
        return before if start is None else before + self.now() - start


@dataclass
class Deadline:
    """When a run must be over: ``budget`` seconds of the time that ``spent`` tells.

    One object goes through all stages of a run.  ``cut`` gathers, in sentences, what was left
    unfinished for lack of time.
    """

    budget: float = math.inf
    spent: Callable[[], float] = time.monotonic
    cut: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._end = self.spent() + self.budget

    @property
    def left(self) -> float:
        """Seconds until the run, or what is under way in it, must end; 0 when it is over."""
        return max(self._end - self.spent(), 0.0)

    @property
    def over(self) -> bool:
        """True if there is no time left."""
        return self.left <= 0.0

    def tell(self, sentence: str) -> None:
        """Note what was left unfinished, once."""
        if sentence not in self.cut:
            self.cut.append(sentence)

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """What happens inside must end in so many seconds, if not earlier."""
        outer = self._end
        self._end = min(outer, self.spent() + seconds)
        try:
            yield
        finally:
            self._end = outer

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """What happens inside takes as long as it takes."""
        outer, self._end = self._end, math.inf
        try:
            yield
        finally:
            self._end = outer

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """What happens inside does not count: the end moves by the time it took."""
        start = self.spent()
        with self.lifted():
            yield
        self._end += self.spent() - start
