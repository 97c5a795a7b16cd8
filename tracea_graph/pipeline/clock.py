"""What step is under way, and how long each one took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Clock"]


@dataclass
class Clock:
    """Names the step under way and adds up seconds per step."""

    progress: Callable[[str], None]
    seconds: dict[str, float] = field(default_factory=dict)
    _name: str = ""
    _start: float = 0.0

    def step(self, name: str) -> None:
        """The step before ends here."""
        now = time.perf_counter()
        if self._name:
            self.seconds[self._name] = self.seconds.get(self._name, 0.0) + now - self._start
        self._name, self._start = name.split(" ")[0], now
        if name:
            self.progress(name)

    def pause(self) -> None:
        """No step is under way."""
        self.step("")
