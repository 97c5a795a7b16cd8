"""Every interleaving of a small team: the protocol of ``runtime/team.h`` as a state machine.

Threads are programs of atomic steps, written as ``team.h`` has them; all orders of the steps of
one lead and some followers are tried, under sequential consistency.  In each, every task of a
call must run once, and before the call is over.  A follower may come at any time, and leave
whenever it waits.  Where nobody leaves or wakes up unasked, no sleeper may be forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from tests.runtime.interleavings import explore_orders

ENDED = -1


class Shared(NamedTuple):
    """Memory: announcements, taken and finished words are pairs; ``runs`` counts a task's runs.

    ``woken`` and ``lead_woken`` count the wake-ups of those who sleep.
    """

    call: int
    said: tuple[int, ...]
    taken: tuple[int, ...]
    finished: tuple[int, ...]
    runs: tuple[int, ...]
    came: int = 1
    sleepers: int = 0
    lead_sleeps: bool = False
    woken: int = 0
    lead_woken: int = 0
    positions: frozenset[int] = frozenset()


Local = tuple[Any, ...]
"""A thread's program counter and variables."""


@dataclass(frozen=True)
class Protocol:
    """A lead that hands out ``calls`` (numbers of tasks) to some followers.

    ``looks_twice`` and ``numbered`` are what protects followers that are delayed: the second look
    at the call, and the refusal of words that a later call has written.  Who is about to sleep
    says so, then ``looks_before_sleep``; who changes something ``asks_for_sleepers`` after that.
    Followers that are ``patient`` come and stay, and sleep until they are woken.

    With ``lead_position``, positions follow processors (``runtime/team_positions.h``): the lead
    has that one, and each follower takes any that is free.
    """

    calls: tuple[int, ...]
    followers: int
    looks_twice: bool = True
    numbered: bool = True
    looks_before_sleep: bool = True
    asks_for_sleepers: bool = True
    patient: bool = False
    lead_position: int | None = None

    @property
    def members(self) -> int:
        return self.followers + 1

    @property
    def first(self) -> tuple[Shared, tuple[Local, ...]]:
        runs = (0,) * sum(self.calls)
        words = ((0, 0),) * (self.members + 1)
        memory = Shared(0, (0, 1, 0, 1), sum(words, ()), sum(words, ()), runs)
        if self.lead_position is not None:
            memory = memory._replace(positions=frozenset((self.lead_position,)))
        return memory, (("announce", 1), *[("come",)] * self.followers)

    def order(self, self_: int, shares: int, single: bool = False) -> tuple[int, ...]:
        """Return a member's shares in order; with positions, ``self_`` is a follower's + 1."""
        if self.lead_position is None:
            order = tuple((self_ + i) % shares for i in range(shares))
            begins = self_ < shares
        else:
            position = self_ - 1 if self_ else self.lead_position
            few = shares < self.members
            owned = [p * shares // self.members if few else p for p in range(position + 1)]
            sides = [(i + 1) // 2 if i % 2 else -(i // 2) for i in range(shares)]
            order = tuple((owned[position] + side) % shares for side in sides)
            begins = position == 0 or owned[position - 1] != owned[position]
        if not single:
            return order
        return order[:1] if begins else ()

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
        name = thread[0]
        if name == "announce":  # the lead, word by word
            (number,) = thread[1:]
            if number > len(self.calls):
                yield memory._replace(call=ENDED), ("ask", ("over",))
                return
            tasks = self.calls[number - 1]
            yield memory, ("tasks", number, tasks, min(self.members, tasks))
        elif name in ("tasks", "shares"):
            number, tasks, shares = thread[1:]
            at = 2 * (number % 2) + (name == "shares")
            value = tasks if name == "tasks" else shares
            after = "shares" if name == "tasks" else "publish"
            said = _with(memory.said, at, value)
            yield memory._replace(said=said), (after, number, tasks, shares)
        elif name == "publish":
            number, tasks, shares = thread[1:]
            work = ("load", 0, number, tasks, shares, 0, self.order(0, shares), 0)
            yield memory._replace(call=number), ("ask", work)
        elif name == "ask":  # for followers that sleep
            (then,) = thread[1:]
            asleep = memory.sleepers and self.asks_for_sleepers
            yield memory, ("wake", then) if asleep else then
        elif name == "wake":
            yield memory._replace(woken=memory.woken + 1), thread[1]
        else:
            yield from self._waits(memory, thread)
            yield from self._works(memory, thread)

    def _waits(self, memory: Shared, thread: Local) -> Iterator[tuple[Shared, Local]]:
        name = thread[0]
        if name == "sum":  # the lead; `sleepy` once it has said that it is about to sleep
            number, tasks, done, member, found, sleepy = thread[1:]
            again = ("sum", number, tasks, done, 1, done)
            if member < (memory.came if self.lead_position is None else self.members + 1):
                last, count = memory.finished[2 * member : 2 * member + 2]
                found += count if last == number else 0
                yield memory, ("sum", number, tasks, done, member + 1, found, sleepy)
            elif found == tasks:
                begin = sum(self.calls[: number - 1])
                assert all(memory.runs[begin : begin + tasks]), "a call ends before its tasks"
                yield memory._replace(lead_sleeps=False), ("announce", number + 1)
            elif sleepy:
                yield memory, ("sleep", again)
            else:
                yield memory, (*again, False)
                said = memory._replace(lead_sleeps=True)
                looks = self.looks_before_sleep
                yield said, (*again, True) if looks else ("sleep", again)
        elif name == "sleep":  # while it still says so
            (again,) = thread[1:]
            if not memory.lead_sleeps:
                yield memory, (*again, False)
            else:
                yield memory, ("asleep", again, memory.lead_woken)
        elif name == "asleep":
            again, woken = thread[1:]
            if memory.lead_woken > woken or not self.patient:
                yield memory._replace(lead_sleeps=False), (*again, False)
        elif name == "tell":  # a follower, once it has finished tasks
            (then,) = thread[1:]
            yield memory, ("swap sleep", then) if memory.lead_sleeps else then
        elif name == "swap sleep":
            (then,) = thread[1:]
            told = memory._replace(lead_sleeps=False)
            yield told, ("wake lead", then) if memory.lead_sleeps else then
        elif name == "wake lead":
            yield memory._replace(lead_woken=memory.lead_woken + 1), thread[1]
        elif name == "come":
            came = memory._replace(came=memory.came + 1)
            seated = self.lead_position is None
            yield came, ("look", memory.came, 0) if seated else ("sit",)
            if not self.patient:
                yield memory, ("gone",)
        elif name == "sit":
            for position in {*range(self.members)} - memory.positions:
                yield (
                    memory._replace(positions=memory.positions | {position}),
                    ("look", position + 1, 0),
                )
        elif name == "look":
            self_, seen = thread[1:]
            if memory.call == ENDED or not self.patient:
                yield memory, ("gone",)
            if memory.call not in (ENDED, seen):
                yield memory, ("read", self_, seen, memory.call)
            if memory.call == seen:
                yield memory._replace(sleepers=memory.sleepers + 1), ("doze", self_, seen)
        elif name == "doze":  # while it is the same call
            self_, seen = thread[1:]
            if memory.call == seen:
                yield memory, ("dream", self_, seen, memory.woken)
            else:
                yield memory._replace(sleepers=memory.sleepers - 1), ("look", self_, seen)
        elif name == "dream":
            self_, seen, woken = thread[1:]
            if memory.woken > woken or not self.patient:
                yield memory._replace(sleepers=memory.sleepers - 1), ("look", self_, seen)

    def _works(self, memory: Shared, thread: Local) -> Iterator[tuple[Shared, Local]]:
        name = thread[0]
        if name == "read":
            self_, seen, number = thread[1:]
            yield memory, ("read more", self_, seen, number, memory.said[2 * (number % 2)])
        elif name == "read more":
            self_, seen, number, tasks = thread[1:]
            shares = memory.said[2 * (number % 2) + 1]
            yield memory, ("look again", self_, seen, number, tasks, shares)
        elif name == "look again":
            self_, seen, number, tasks, shares = thread[1:]
            if self.looks_twice and memory.call != number:
                yield memory, ("look", self_, seen)
                return
            single = tasks == shares and memory.came >= self.members
            order = self.order(self_, shares, single)
            yield memory, ("load", self_, number, tasks, shares, 0, order, 0)
        elif name == "load":  # what is taken of the first share of the order
            self_, number, tasks, shares, done, order, more = thread[1:]
            if not order:
                then: Local = ("look", self_, number)
                if not self_:
                    then = ("sum", number, tasks, done, 1, done, False)
                yield memory, then
                return
            was = memory.taken[2 * order[0] : 2 * order[0] + 2]
            yield memory, ("swap", self_, number, tasks, shares, done, order, more, was)
        elif name == "swap":
            self_, number, tasks, shares, done, order, more, was = thread[1:]
            span = self.span(tasks, shares, order[0])
            last, count = was if was[0] == number else (was[0], 0)
            if (self.numbered and last > number) or count >= len(span):
                then = ("load", self_, number, tasks, shares, done, order[1:], 0)
                if self_ and more:
                    finished = _with(memory.finished, 2 * self_, number, done)
                    memory, then = memory._replace(finished=finished), ("tell", then)
                yield memory, then
                return
            at = 2 * order[0]
            if memory.taken[at : at + 2] != was:
                yield memory, ("load", self_, number, tasks, shares, done, order, more)
                return
            yield (
                memory._replace(taken=_with(memory.taken, at, number, count + 1)),
                ("run", self_, number, tasks, shares, done, order, more, span[count]),
            )
        elif name == "run":
            self_, number, tasks, shares, done, order, more, task = thread[1:]
            runs = self.ran(memory.runs, number, task, memory.call)
            yield (
                memory._replace(runs=runs),
                ("load", self_, number, tasks, shares, done + 1, order, 1),
            )

    def explore(self) -> int:
        """Try every order of steps; return how many states there are."""
        return explore_orders(self.first, self.steps)


def _with(words: tuple[int, ...], at: int, *values: int) -> tuple[int, ...]:
    return (*words[:at], *values, *words[at + len(values) :])


@pytest.mark.parametrize(
    ("calls", "followers"), [((2, 3, 1), 1), ((2, 1, 4), 1), ((1, 2), 2), ((3,), 2)]
)
def test_every_task_runs_once_in_every_order(calls: tuple[int, ...], followers: int) -> None:
    assert Protocol(calls, followers).explore() > 100


@pytest.mark.parametrize(
    ("calls", "followers", "position"), [((2, 3, 1), 1, 1), ((2, 1, 4), 1, 0), ((2,), 2, 1)]
)
def test_every_task_runs_once_whatever_the_positions(
    calls: tuple[int, ...], followers: int, position: int
) -> None:
    assert Protocol(calls, followers, lead_position=position).explore() > 100
    assert Protocol(calls, 1, lead_position=position, patient=True).explore() > 100


def test_the_second_look_is_needed() -> None:
    with pytest.raises(AssertionError, match="task"):
        Protocol((2, 1, 4), 1, looks_twice=False).explore()


def test_the_numbers_of_calls_are_needed() -> None:
    with pytest.raises(AssertionError, match="task"):
        Protocol((2, 2), 1, numbered=False).explore()


@pytest.mark.parametrize(
    ("calls", "followers"),
    [((2, 3, 1), 1), ((1, 2, 2), 1), pytest.param((1, 2), 2, marks=pytest.mark.slow)],
)
def test_nobody_sleeps_forever(calls: tuple[int, ...], followers: int) -> None:
    assert Protocol(calls, followers, patient=True).explore() > 100


def test_the_lead_must_look_once_it_has_said_that_it_sleeps() -> None:
    with pytest.raises(AssertionError, match="waits"):
        Protocol((2, 2), 1, looks_before_sleep=False, patient=True).explore()


def test_whoever_sleeps_must_be_asked_for() -> None:
    with pytest.raises(AssertionError, match="wakes"):
        Protocol((2, 2), 1, asks_for_sleepers=False, patient=True).explore()
