"""Find the faulty rewrites of a candidate that fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["find_faulty_rewrites"]


def find_faulty_rewrites(
    rewrites: Sequence[str],
    fails: Callable[[frozenset[str]], bool],
    has_time: Callable[[], bool] = lambda: True,
) -> frozenset[str]:
    """Return a minimal set of rewrites that fails together (QuickXplain, Junker 2004).

    ``fails(on)`` builds and verifies with only the rewrites in ``on``; it must return False for
    none. Every rewrite in the result is necessary for the failure.  One faulty rewrite of n costs
    about 2·log2(n) calls.  The result is empty if all rewrites together do not fail.
    ``has_time()`` is checked before and after each call; once it returns False, the smallest set
    seen to fail is returned, and the answer of a call during which time ran out is ignored.
    """
    known = frozenset(rewrites)
    if not rewrites or (not fails(known) and has_time()):
        return frozenset()

    def fails_in_time(on: frozenset[str]) -> bool:
        nonlocal known
        failed = has_time() and fails(on)
        if not has_time():
            raise _OutOfTime
        known = on if failed else known
        return failed

    def minimal(sure: frozenset[str], grown: bool, rest: tuple[str, ...]) -> frozenset[str]:
        """Return a minimal part of ``rest`` that fails together with the rewrites ``sure``.

        ``grown`` says that ``sure`` has grown since the last call, so that it may fail alone.
        """
        if grown and fails_in_time(sure):
            return frozenset()
        if len(rest) == 1:
            return frozenset(rest)
        first, second = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        right = minimal(sure | set(first), True, second)
        left = minimal(sure | right, bool(right), first)
        return left | right

    try:
        return minimal(frozenset(), False, tuple(dict.fromkeys(rewrites)))
    except _OutOfTime:
        return known


class _OutOfTime(Exception):
    """The time for the search is up."""
