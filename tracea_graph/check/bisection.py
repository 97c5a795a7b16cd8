"""Which rewrites are to blame when all of them together fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["bisect"]


def bisect(
    rewrites: Sequence[str],
    fails: Callable[[frozenset[str]], bool],
    patient: Callable[[], bool] = lambda: True,
) -> frozenset[str]:
    """A smallest set of rewrites that fails together (QuickXplain, Junker 2004).

    ``fails(on)`` builds and verifies with just the rewrites in ``on``; it must be False for none.
    No rewrite can be left out of the result.  One guilty rewrite of n costs about 2·log2(n)
    calls.  Empty if all of them together do not fail.  As soon as ``patient()`` is False, asked
    before and after each call, the smallest set that was seen to fail: what a call says is not
    believed if patience ended meanwhile.
    """
    known = frozenset(rewrites)
    if not rewrites or (not fails(known) and patient()):
        return frozenset()

    def fails_in_time(on: frozenset[str]) -> bool:
        nonlocal known
        failed = patient() and fails(on)
        if not patient():
            raise _OutOfPatience
        known = on if failed else known
        return failed

    def blame(sure: frozenset[str], fresh: bool, rest: tuple[str, ...]) -> frozenset[str]:
        """What of ``rest`` is needed to fail beside ``sure``; ``fresh`` if ``sure`` just grew."""
        if fresh and fails_in_time(sure):
            return frozenset()
        if len(rest) == 1:
            return frozenset(rest)
        first, second = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        right = blame(sure | set(first), True, second)
        left = blame(sure | right, bool(right), first)
        return left | right

    try:
        return blame(frozenset(), False, tuple(dict.fromkeys(rewrites)))
    except _OutOfPatience:
        return known


class _OutOfPatience(Exception):
    """Looking further is not worth the time."""
