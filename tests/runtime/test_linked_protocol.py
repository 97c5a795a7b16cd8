"""Every interleaving of a few linked calls: ``runtime/linked_calls.h`` as a state machine.

Threads are programs of atomic steps, written as the header has them; all orders of the steps of
a lead and some followers are tried, under sequential consistency.  In each, every task must run
once, after all tasks that compute rows it reads, be they of the call before or of older ones, and
before the lead goes on.  No sleeper may be forgotten, and a follower that is delayed into later
calls may take nothing of them by mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from tests.runtime.interleavings import explore_orders

ENDED = -1
OWN = -1
ROWS = 2


class Linked(NamedTuple):
    """A call of ``steps`` ranges of rows with ``width`` tasks each; it reads its rows or all.

    A window is ``halo`` rows wider on both sides.  ``over``: calls that must be over before any
    task of this one; ``older``: whether it also reads rows of the call before the last one.
    """

    steps: int
    width: int = 1
    all: bool = False
    halo: int = 0
    over: int = 0
    older: bool = False

    @property
    def tasks(self) -> int:
        return self.steps * self.width

    def shares(self, members: int) -> int:
        return 1 if self.all else min(members, self.tasks)

    def span(self, members: int, share: int) -> range:
        shares = self.shares(members)
        return range(self.tasks * share // shares, self.tasks * (share + 1) // shares)

    def rows(self, step: int) -> range:
        return range(ROWS * step // self.steps, ROWS * (step + 1) // self.steps)

    def reads(self, step: int, before: Linked) -> range:
        """Return the steps of a call before that the rows one of this call's reads lie in."""
        own = self.rows(step)
        mine = range(ROWS) if self.all else range(own.start - self.halo, own.stop + self.halo)
        found = [s for s in range(before.steps) if {*before.rows(s)} & {*mine}]
        return range(found[0], found[-1] + 1)


class Shared(NamedTuple):
    """Memory.  ``taken`` and ``finished`` hold (number, count) by call and share or step; ``ran``
    holds the tasks that are over, ``alive`` the number whose tasks may run.
    """

    call: int
    published: tuple[int, int, bool]
    described: tuple[tuple[int, int], ...]
    taken: tuple[tuple[int, int], ...]
    finished: tuple[tuple[int, int], ...]
    ran: frozenset[tuple[int, int, int]] = frozenset()
    alive: int = 0
    events: int = 0
    sleepers: int = 0
    woken: int = 0


Local = tuple[Any, ...]
"""A thread's program counter and variables."""


class Known(NamedTuple):
    """What a thread that works has read: ``event`` is the count before it looked for a task."""

    self: int
    number: int
    event: int = 0
    calls: int = 0
    closed: bool = False
    taken: frozenset[int] = frozenset()
    over: int = 0
    ready: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True)
class Protocol:
    """A lead that links calls, number after number, and some followers.

    The flags are what protects: the second look at the number, tasks that wait for rows, and for
    calls to be over, the count of events that is read before looking for a task, and asking for
    sleepers after an event.
    """

    numbers: tuple[tuple[Linked, ...], ...]
    followers: int = 1
    looks_twice: bool = True
    waits_for_rows: bool = True
    waits_for_calls: bool = True
    counts_first: bool = True
    asks_for_sleepers: bool = True

    @property
    def members(self) -> int:
        return self.followers + 1

    @property
    def most(self) -> int:
        return max(len(calls) for calls in self.numbers)

    @property
    def first(self) -> tuple[Shared, tuple[Local, ...]]:
        words = ((0, 0),) * (self.most * max(self.members, ROWS))
        memory = Shared(0, (0, 0, False), ((0, 0),) * (2 * self.most), words, words)
        return memory, (("open", 1), *[("look", i + 1, 0) for i in range(self.followers)])

    def steps(self, memory: Shared, thread: Local) -> Iterator[tuple[Shared, Local]]:
        """Yield what one step of a thread may lead to."""
        name = thread[0]
        if name == "open":  # the lead
            (number,) = thread[1:]
            if number > len(self.numbers):
                yield memory._replace(call=ENDED), ("over",)
                return
            opened = memory._replace(published=(number, 0, False), alive=number)
            yield opened, ("describe", number, 0)
        elif name == "describe":
            number, c = thread[1:]
            at = number % 2 * self.most + c
            said = _with(memory.described, at, (number, c))
            yield memory._replace(described=said), ("publish", number, c)
        elif name == "publish":
            number, c = thread[1:]
            more = memory._replace(published=(number, c + 1, False))
            then: Local = ("describe", number, c + 1)
            if c + 1 == len(self.numbers[number - 1]):
                then = ("close", number)
            yield more, ("tell", then if c else ("announce", number, then))
        elif name == "announce":
            number, then = thread[1:]
            yield memory._replace(call=number), then
        elif name == "close":
            (number,) = thread[1:]
            closed = memory._replace(published=(*memory.published[:2], True))
            yield closed, ("tell", ("count", Known(0, number)))
        elif name == "look":  # a follower
            self_, seen = thread[1:]
            if memory.call == ENDED:
                yield memory, ("gone",)
            elif memory.call != seen:
                yield memory, ("count", Known(self_, memory.call))
        elif name == "tell":  # whoever changed something
            (then,) = thread[1:]
            yield memory._replace(events=memory.events + 1), ("ask", then)
        elif name == "ask":
            (then,) = thread[1:]
            asleep = memory.sleepers and self.asks_for_sleepers
            yield memory, ("wake", then) if asleep else then
        elif name == "wake":
            yield memory._replace(woken=memory.woken + 1), thread[1]
        elif name in ("asleep", "sleep", "doze", "await"):
            yield from self._waits(memory, thread)
        elif name not in ("over", "gone"):
            yield from self._works(memory, name, thread[1], thread[2:])

    def _waits(self, memory: Shared, thread: Local) -> Iterator[tuple[Shared, Local]]:
        name, known = thread[:2]
        again = ("count", known)
        if name == "await":
            if not self.counts_first:
                known = known._replace(event=memory.events)
            if memory.events != known.event:
                yield memory, again
            else:
                yield memory, ("doze", known)
        elif name == "doze":
            yield memory._replace(sleepers=memory.sleepers + 1), ("sleep", known)
        elif name == "sleep":  # if there is still no event
            if memory.events == known.event:
                yield memory, ("asleep", known, memory.woken)
            else:
                yield memory._replace(sleepers=memory.sleepers - 1), again
        elif memory.woken > thread[2]:
            yield memory._replace(sleepers=memory.sleepers - 1), again

    def _works(
        self, memory: Shared, name: str, known: Known, rest: Local
    ) -> Iterator[tuple[Shared, Local]]:
        number, calls = known.number, self.numbers[known.number - 1]
        if name == "count":
            yield memory, ("read", known._replace(event=memory.events))
        elif name == "read":
            now, count, closed = memory.published
            if now != number:
                yield memory, self._leaves(known)
            else:
                yield memory, ("copy", known._replace(closed=closed), known.calls, count, ())
        elif name == "copy":  # the next description, then the second look
            c, count, found = rest
            if c < count:
                text = memory.described[number % 2 * self.most + c]
                yield memory, ("copy", known, c + 1, count, (*found, text))
            elif self.looks_twice and found and memory.published[0] != number:
                yield memory, self._leaves(known)
            else:
                for text in found:
                    assert text[0] == number, "a description of other calls is used"
                yield memory, ("scan", known._replace(calls=count), 0, OWN, False)
        elif name == "scan":
            yield memory, self._scan(known, *rest)
        elif name == "load":  # how much of a share is taken
            c, i, left = rest
            call = calls[c]
            share = (known.self + max(i, 0)) % call.shares(self.members)
            was = memory.taken[self._at(c, share)]
            span = call.span(self.members, share)
            count = was[1] if was[0] == number else 0
            if was[0] > number or count >= len(span):
                yield memory, self._next(known, c, i, left)
                return
            step = span[count] // call.width
            needs = [(c - 1, s) for s in self._waits_for(calls, c, step)]
            if self.waits_for_calls:
                older = range(known.over, call.over)
                needs = [(o, s) for o in older for s in range(calls[o].steps)] + needs
            if (c, step) in known.ready:
                needs = []
            yield memory, ("need", known, c, i, left, was, span[count], tuple(needs))
        elif name == "need":  # a step of a call before
            c, i, left, was, task, needs = rest
            if not needs:
                known = known._replace(ready=known.ready | {(c, task // calls[c].width)})
                yield memory, ("swap", known, c, i, left, was, task)
            elif memory.finished[self._at(*needs[0])] == (number, calls[needs[0][0]].width):
                (o, step), *rest_of = needs
                if o == known.over and step == calls[o].steps - 1 and o < calls[c].over:
                    known = known._replace(over=o + 1)
                yield memory, ("need", known, c, i, left, was, task, tuple(rest_of))
            else:
                yield memory, self._next(known, c, i, True)
        elif name == "swap":
            c, i, left, was, task = rest
            share = (known.self + max(i, 0)) % calls[c].shares(self.members)
            at = self._at(c, share)
            if memory.taken[at] != was:
                yield memory, ("load", known, c, i, left)
                return
            count = was[1] if was[0] == number else 0
            taken = _with(memory.taken, at, (number, count + 1))
            yield memory._replace(taken=taken), ("run", known, c, task)
        elif name == "run":
            yield self._run(memory, known, *rest), ("finish", known, *rest)
        elif name == "finish":
            c, task = rest
            at = self._at(c, task // calls[c].width)
            was = memory.finished[at]
            count = 1 + (was[1] if was[0] == number else 0)
            after = memory._replace(finished=_with(memory.finished, at, (number, count)))
            then = ("count", known)
            yield after, ("tell", then) if count == calls[c].width else then
        elif name == "done":  # the lead: whether the steps of the last call are complete
            (step,) = rest
            last = len(calls) - 1
            if step == calls[last].steps:
                wanted = {
                    (number, c, t) for c, call in enumerate(calls) for t in range(call.tasks)
                }
                assert wanted <= memory.ran, "the lead goes on before all tasks have run"
                yield memory._replace(alive=0), ("open", number + 1)
            elif memory.finished[self._at(last, step)] == (number, calls[last].width):
                yield memory, ("done", known, step + 1)
            else:
                yield memory, ("await", known)

    def _waits_for(self, calls: tuple[Linked, ...], c: int, step: int) -> range:
        """Return the steps of the call before that one waits for: ``runtime/group_waits.h``."""
        if not c or not self.waits_for_rows or calls[c].over == c:
            return range(0)
        found = calls[c].reads(step, calls[c - 1])
        first, last = found.start, found.stop - 1
        if calls[c].older and c > 1:
            wanted = calls[c].reads(step, calls[c - 2])
            while self._waits_for(calls, c - 1, first).start > wanted.start:
                first -= 1
            while self._waits_for(calls, c - 1, last).stop < wanted.stop:
                last += 1
        return range(first, last + 1)

    def _next(self, known: Known, c: int, i: int, left: bool) -> Local:
        """Return the step after a share without a task: the own one of each call, then all."""
        return ("scan", known, *((c + 1, OWN, False) if i == OWN else (c, i + 1, left)))

    def _scan(self, known: Known, c: int, i: int, left: bool) -> Local:
        """Return the next share to look at, or what comes after the last one."""
        calls = self.numbers[known.number - 1]
        if i == OWN:
            c = next((c for c in range(c, known.calls) if c not in known.taken), known.calls)
            if c < known.calls:
                return ("load", known, c, OWN, False)
            c, i, left = 0, 0, False
        while c < known.calls:
            if c not in known.taken and i < calls[c].shares(self.members):
                return ("load", known, c, i, left)
            if not left:
                known = known._replace(taken=known.taken | {c})
            c, i, left = c + 1, 0, False
        if known.closed and not known.self:
            return ("done", known, 0)
        if known.closed and len(known.taken) == known.calls:
            return self._leaves(known)
        return ("await", known)

    def _run(self, memory: Shared, known: Known, c: int, task: int) -> Shared:
        number, calls = known.number, self.numbers[known.number - 1]
        assert memory.alive == number, f"a task of number {number} runs after its end"
        assert (number, c, task) not in memory.ran, "a task runs twice"
        for o in range(calls[c].over):
            for t in range(calls[o].tasks):
                assert (number, o, t) in memory.ran, "a task runs before a call is over"
        for o in range(max(0, c - 1 - calls[c].older), c):
            before, step = calls[o], task // calls[c].width
            for read in calls[c].reads(step, before):
                for t in range(read * before.width, (read + 1) * before.width):
                    assert (number, o, t) in memory.ran, "a task runs before its rows are there"
        return memory._replace(ran=memory.ran | {(number, c, task)})

    def _at(self, c: int, i: int) -> int:
        return c * max(self.members, ROWS) + i

    def _leaves(self, known: Known) -> Local:
        return ("look", known.self, known.number)

    def explore(self) -> int:
        """Try every order of steps; return how many states there are."""
        return explore_orders(self.first, self.steps)


def _with(words: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*words[:at], value, *words[at + 1 :])


ONE, TWO, WIDE, ALL = Linked(1), Linked(2), Linked(1, 2), Linked(2, all=True)
WINDOW, OLDER, AFTER = Linked(2, halo=1), Linked(2, halo=1, older=True), Linked(2, over=1)


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param(((TWO, TWO),), marks=pytest.mark.slow),  # as with a window
        ((ONE, ALL),),
        ((ONE,), (TWO,)),
        ((ONE,), (ONE,), (ONE,)),
        ((TWO, WINDOW),),
        ((ONE, AFTER),),
    ],
)
def test_every_task_runs_once_when_its_rows_are_there(
    numbers: tuple[tuple[Linked, ...], ...],
) -> None:
    assert Protocol(numbers).explore() > 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("numbers", "followers"),
    [
        (((WIDE, ALL),), 1), (((ALL, TWO), (TWO,)), 1), (((ONE,),), 2), (((ONE, ONE, OLDER),), 1),
        (((ONE, ONE, AFTER),), 1),
    ],
)  # fmt: skip
def test_more_calls_and_followers(numbers: tuple[tuple[Linked, ...], ...], followers: int) -> None:
    assert Protocol(numbers, followers).explore() > 100_000


def test_tasks_must_wait_for_their_rows() -> None:
    with pytest.raises(AssertionError, match="before its rows"):
        Protocol(((TWO, ALL),), waits_for_rows=False).explore()


def test_tasks_must_wait_for_calls_to_be_over() -> None:
    with pytest.raises(AssertionError, match="call is over"):
        Protocol(((TWO, AFTER),), waits_for_calls=False).explore()


def test_the_second_look_is_needed() -> None:
    with pytest.raises(AssertionError, match="description"):
        Protocol(((ONE,), (ONE,), (ONE,)), looks_twice=False).explore()


def test_events_must_be_counted_before_looking_for_a_task() -> None:
    with pytest.raises(AssertionError, match=r"waits for nobody|wakes"):
        Protocol(((TWO,),), counts_first=False).explore()


def test_sleepers_must_be_asked_for() -> None:
    with pytest.raises(AssertionError, match=r"waits for nobody|wakes"):
        Protocol(((TWO,),), asks_for_sleepers=False).explore()
