"""Every order in which the threads of a modelled protocol may take their steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["explore_orders"]


def explore_orders(first: Any, steps: Callable[[Any, Any], Iterable[tuple[Any, Any]]]) -> int:
    """Try every order of steps; return how many states there are.

    A state is the memory and each thread; ``first`` is the one to begin with.  ``steps`` are what
    a thread can do next: the memory and the thread afterwards.
    """
    known, left = {first}, [first]
    while left:
        memory, threads = left.pop()
        moved = False
        for i, thread in enumerate(threads):
            for after, became in steps(memory, thread):
                moved = True
                state = (after, (*threads[:i], became, *threads[i + 1 :]))
                if state not in known:
                    known.add(state)
                    left.append(state)
        assert moved or threads[0] == ("over",), "the lead waits for nobody"
        assert moved or {*threads[1:]} <= {("gone",)}, "nobody wakes a follower"
    return len(known)
