"""Every interleaving of a small team: the protocol of ``runtime/team.h`` as a state machine.

Threads are programs of atomic steps, written as ``team.h`` has them; all orders of the steps of
one lead and some followers are tried, under sequential consistency.  In each, every task of a
call must run once, and before the call is over.  A follower may come at any time, and leave
whenever it waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

ENDED = -1
Shared = tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], int]
"""The call, words of two announcements, taken and finished words, completed runs, who came."""
Local = tuple[Any, ...]
"""A thread's program counter and variables."""


@dataclass(frozen=True)
class Protocol:
    """A lead that hands out ``calls`` (numbers of tasks) to some followers.

    ``looks_twice`` and ``numbered`` are what protects followers that are delayed: the second look
    at the call, and the refusal of words that a later call has written.
    """

    calls: tuple[int, ...]
    followers: int
    looks_twice: bool = True
    numbered: bool = True

    @property
    def members(self) -> int:
        return self.followers + 1

    @property
    def first(self) -> tuple[Shared, tuple[Local, ...]]:
        runs = (0,) * sum(self.calls)
        words = ((0, 0),) * self.members
        memory: Shared = (0, (0, 1, 0, 1), sum(words, ()), sum(words, ()), runs, 1)
        return memory, (("announce", 1), *[("come",)] * self.followers)

    def span(self, tasks: int, shares: int, share: int) -> range:
        return range(tasks * share // shares, tasks * (share + 1) // shares)

    def ran(self, runs: tuple[int, ...], number: int, task: int, now: int) -> tuple[int, ...]:
        """Count a task's run; it must be one of the current call's."""
        assert number == now, f"a task of call {number} runs in call {now}"
        assert task < self.calls[number - 1], "a task that the call does not have"
        at = sum(self.calls[: number - 1]) + task
        assert not runs[at], "a task runs twice"
        return (*runs[:at], 1, *runs[at + 1 :])

    def steps(self, memory: Shared, thread: Local) -> Iterator[tuple[Shared, Local]]:
        """Yield what one step of a thread may lead to."""
        call, said, taken, finished, runs, came = memory
        name = thread[0]
        if name == "announce":  # the lead, word by word
            (number,) = thread[1:]
            if number > len(self.calls):
                yield (ENDED, said, taken, finished, runs, came), ("over",)
                return
            tasks = self.calls[number - 1]
            yield memory, ("tasks", number, tasks, min(self.members, tasks))
        elif name in ("tasks", "shares"):
            number, tasks, shares = thread[1:]
            at = 2 * (number % 2) + (name == "shares")
            value = tasks if name == "tasks" else shares
            said = (*said[:at], value, *said[at + 1 :])
            after = "shares" if name == "tasks" else "publish"
            yield (call, said, taken, finished, runs, came), (after, number, tasks, shares)
        elif name == "publish":
            number, tasks, shares = thread[1:]
            work = ("load", 0, number, tasks, shares, 0, tuple(range(shares)), 0)
            yield (number, said, taken, finished, runs, came), work
        elif name == "sum":
            number, tasks, done, member, found = thread[1:]
            if member < came:
                last, count = finished[2 * member : 2 * member + 2]
                found += count if last == number else 0
                yield memory, ("sum", number, tasks, done, member + 1, found)
            elif found == tasks:
                begin = sum(self.calls[: number - 1])
                assert all(runs[begin : begin + tasks]), "a call ends before its tasks"
                yield memory, ("announce", number + 1)
            else:
                yield memory, ("sum", number, tasks, done, 1, done)
        elif name == "come":
            yield (call, said, taken, finished, runs, came + 1), ("look", came, 0)
            yield memory, ("gone",)
        elif name == "look":
            self_, seen = thread[1:]
            yield memory, ("gone",)
            if call not in (ENDED, seen):
                yield memory, ("read", self_, seen, call)
        elif name == "read":
            self_, seen, number = thread[1:]
            yield memory, ("read more", self_, seen, number, said[2 * (number % 2)])
        elif name == "read more":
            self_, seen, number, tasks = thread[1:]
            shares = said[2 * (number % 2) + 1]
            yield memory, ("look again", self_, seen, number, tasks, shares)
        elif name == "look again":
            self_, seen, number, tasks, shares = thread[1:]
            if self.looks_twice and call != number:
                yield memory, ("look", self_, seen)
                return
            single = tasks == shares and came >= self.members
            order = tuple((self_ + i) % shares for i in range(shares))
            if single:
                order = order[:1] if self_ < shares else ()
            yield memory, ("load", self_, number, tasks, shares, 0, order, 0)
        elif name == "load":  # what is taken of the first share of the order
            self_, number, tasks, shares, done, order, more = thread[1:]
            if not order:
                then: Local = ("look", self_, number)
                if not self_:
                    then = ("sum", number, tasks, done, 1, done)
                yield memory, then
                return
            was = taken[2 * order[0] : 2 * order[0] + 2]
            yield memory, ("swap", self_, number, tasks, shares, done, order, more, was)
        elif name == "swap":
            self_, number, tasks, shares, done, order, more, was = thread[1:]
            span = self.span(tasks, shares, order[0])
            last, count = was if was[0] == number else (was[0], 0)
            if (self.numbered and last > number) or count >= len(span):
                if self_ and more:
                    word = (number, done)
                    at = 2 * self_
                    finished = (*finished[:at], *word, *finished[at + 2 :])
                memory = (call, said, taken, finished, runs, came)
                yield memory, ("load", self_, number, tasks, shares, done, order[1:], 0)
                return
            at = 2 * order[0]
            if taken[at : at + 2] != was:
                yield memory, ("load", self_, number, tasks, shares, done, order, more)
                return
            taken = (*taken[:at], number, count + 1, *taken[at + 2 :])
            yield (
                (call, said, taken, finished, runs, came),
                ("run", self_, number, tasks, shares, done, order, more, span[count]),
            )
        elif name == "run":
            self_, number, tasks, shares, done, order, more, task = thread[1:]
            runs = self.ran(runs, number, task, call)
            yield (
                (call, said, taken, finished, runs, came),
                ("load", self_, number, tasks, shares, done + 1, order, 1),
            )

    def explore(self) -> int:
        """Try every order of steps; return how many states there are."""
        known, left = {self.first}, [self.first]
        while left:
            memory, threads = left.pop()
            moved = False
            for i, thread in enumerate(threads):
                for after, became in self.steps(memory, thread):
                    moved = True
                    state = (after, (*threads[:i], became, *threads[i + 1 :]))
                    if state not in known:
                        known.add(state)
                        left.append(state)
            assert moved or threads[0] == ("over",), "the lead waits for nobody"
        return len(known)


@pytest.mark.parametrize(
    ("calls", "followers"), [((2, 3, 1), 1), ((2, 1, 4), 1), ((2, 2), 2), ((3,), 2)]
)
def test_every_task_runs_once_in_every_order(calls: tuple[int, ...], followers: int) -> None:
    assert Protocol(calls, followers).explore() > 100


def test_the_second_look_is_needed() -> None:
    with pytest.raises(AssertionError, match="task"):
        Protocol((2, 1, 4), 1, looks_twice=False).explore()


def test_the_numbers_of_calls_are_needed() -> None:
    with pytest.raises(AssertionError, match="task"):
        Protocol((2, 2), 1, numbered=False).explore()
