"""What to do without where lower precision is too coarse: as little time as possible.

Errors of rounding add up, no single place is to blame, and what is rounded early goes through
everything behind: a rule is given up from the front, as far as needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

__all__ = ["relief"]

_FRONT = 32  # shares of a net in which the end of what stays exact is searched for

Keys = Mapping[str, Sequence[str]]
"""For each rule: what drops its first place, its first two … all of them."""


def relief(
    reliefs: Sequence[Sequence[str]],
    keys: Keys,
    dropped: frozenset[str],
    wrong: Callable[[frozenset[str]], bool],
    coarse: Callable[[frozenset[str]], bool],
    patient: Callable[[], bool],
) -> Mapping[str, int]:
    """How many places of which rules stay exact beside what is ``dropped``; none if that is of no
    use.  ``coarse`` asks for more than not to be ``wrong``.

    The first of ``reliefs`` (sets of rules) that is enough is searched: of its last rule, which
    costs most to do without, as much as possible stays, then of the others.
    """
    present = (tuple(rule for rule in rules if keys[rule]) for rules in reliefs)
    for rules in dict.fromkeys(filter(None, present)):
        counts = {rule: len(keys[rule]) for rule in rules}
        if keys[rules[-1]][-1] in dropped or wrong(dropped | _ends(keys, counts)):
            continue
        for rule in reversed(rules):
            low, high = 0, len(keys[rule])  # too coarse without so many, right without so many
            while high - low > max(1, len(keys[rule]) // _FRONT) and patient():
                middle = (low + high) // 2
                less = _ends(keys, {**counts, rule: middle})
                low, high = (middle, high) if coarse(dropped | less) else (low, middle)
            counts[rule] = high
        return counts
    return {}


def _ends(keys: Keys, counts: Mapping[str, int]) -> frozenset[str]:
    """What drops the first places of each rule."""
    return frozenset(keys[rule][count - 1] for rule, count in counts.items() if count)
