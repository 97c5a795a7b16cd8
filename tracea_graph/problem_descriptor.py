"""Descriptions of single problems: ``gemm:128x768x3072``, ``conv:1x64x56x56x64x3,stride=2`` …

    KIND:SIZExSIZE…[,NAME=VALUE…]

``KINDS`` lists the kinds with the sizes of each, in order, and the settings it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tracea_graph.errors import UsageError, did_you_mean

__all__ = ["EPILOGUES", "GRAMMAR", "KINDS", "ProblemDescriptor", "ProblemKind"]

EPILOGUES = ("none", "relu", "sigmoid", "tanh", "gelu")
"""Elementwise operators that may follow a matrix product or a convolution."""
_MOST = 1 << 24


@dataclass(frozen=True)
class ProblemKind:
    """A kind of problem: names of its sizes, and its settings with their default values.

    If the default is a word, the setting takes one of :data:`EPILOGUES`; otherwise an integer.
    """

    sizes: tuple[str, ...]
    settings: Mapping[str, int | str] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)
    most: Mapping[str, int] = field(default_factory=dict)


_PRODUCT: Mapping[str, int | str] = {"bias": 1, "epilogue": "none"}
_CONV: Mapping[str, int | str] = {"stride": 1, "pad": -1, "bias": 1, "epilogue": "none"}
KINDS: Mapping[str, ProblemKind] = MappingProxyType(
    {
        "gemm": ProblemKind(("M", "N", "K"), _PRODUCT),
        "sparse": ProblemKind(
            ("M", "N", "K"),
            {"zeros": 80, "block": 16, **_PRODUCT},
            {"zeros": 1, "block": 1},
            {"zeros": 99},
        ),
        "int8": ProblemKind(("M", "N", "K")),
        "int4": ProblemKind(("M", "N", "K"), {"block": 32}, {"block": 16}, {"block": 256}),
        "conv": ProblemKind(
            ("batch", "channels", "height", "width", "filters", "kernel"),
            {**_CONV, "groups": 1},
            {"stride": 1, "groups": 1},
        ),
        "depthwise": ProblemKind(
            ("batch", "channels", "height", "width", "kernel"), _CONV, {"stride": 1}
        ),
        "attention": ProblemKind(("batch", "heads", "queries", "keys", "head"), {"causal": 0}),
        "chain": ProblemKind(
            ("rows", "columns"), {"operands": 2}, {"operands": 1}, {"operands": 4}
        ),
    }
)
GRAMMAR = "; ".join(
    f"{name}:{'x'.join(kind.sizes)}" + "".join(f"[,{s}={v}]" for s, v in kind.settings.items())
    for name, kind in KINDS.items()
)
"""All kinds as text, with the defaults of their settings.

A ``pad`` of -1 means half the kernel.  ``zeros`` is the percentage of blocks that are zero; a
block has ``block`` rows (steps of K) and 16 columns.
"""


@dataclass(frozen=True)
class ProblemDescriptor:
    """One problem: its kind, its sizes in the order of the kind, and its settings.

        ProblemDescriptor("gemm", (128, 768, 3072))
        ProblemDescriptor("conv", (1, 64, 56, 56, 64, 3), {"stride": 2, "epilogue": "relu"})

    Raises UsageError for an unknown kind, sizes that do not fit it, and invalid settings.
    """

    kind: str
    sizes: tuple[int, ...]
    settings: Mapping[str, int | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            which = did_you_mean(self.kind, KINDS) or f"; the kinds are {', '.join(KINDS)}"
            raise UsageError(f"the kind of problem is unknown: {self.kind!r}{which}")
        kind = KINDS[self.kind]
        if len(self.sizes) != len(kind.sizes):
            named = f"{self.kind}:{'x'.join(kind.sizes)}"
            raise UsageError(f"{named} takes {len(kind.sizes)} sizes, not {len(self.sizes)}")
        for name, size in zip(kind.sizes, self.sizes, strict=True):
            if not 1 <= size <= _MOST:
                raise UsageError(f"{name} of {self.kind} must be from 1 to {_MOST}, not {size}")
        for name, value in self.settings.items():
            _check(self.kind, kind, name, value)

    @classmethod
    def parse(cls, text: str) -> ProblemDescriptor:
        """Parse the text of a problem.  Raises UsageError."""
        name, colon, rest = text.partition(":")
        sizes, *settings = rest.split(",")
        if not colon or not sizes:
            raise UsageError(f"{text!r} is no problem such as gemm:128x768x3072; {GRAMMAR}")
        found: dict[str, int | str] = {}
        for setting in settings:
            key, equals, value = setting.partition("=")
            if not equals:
                raise UsageError(f"{setting!r} in {text!r} is not NAME=VALUE")
            found[key] = int(value) if _is_integer(value) else value
        numbers = sizes.split("x")
        if wrong := next((number for number in numbers if not number.isdecimal()), None):
            raise UsageError(f"{wrong!r} in {text!r} is no size; write 128x768x3072")
        if not all(numbers):
            raise UsageError(f"a size is missing in {text!r}")
        return cls(name, tuple(map(int, numbers)), found)

    def __getitem__(self, name: str) -> int | str:
        """Return a size or a setting by its name."""
        kind = KINDS[self.kind]
        if name in kind.sizes:
            return self.sizes[kind.sizes.index(name)]
        return self.settings.get(name, kind.settings[name])

    def number(self, name: str) -> int:
        """Return a size or a numeric setting by its name."""
        return int(self[name])

    def __str__(self) -> str:
        settings = "".join(f",{name}={value}" for name, value in self.settings.items())
        return f"{self.kind}:{'x'.join(map(str, self.sizes))}{settings}"


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _check(name: str, kind: ProblemKind, setting: str, value: int | str) -> None:
    if setting not in kind.settings:
        every = f"; its settings are {', '.join(kind.settings)}"
        which = did_you_mean(setting, kind.settings) or every
        raise UsageError(f"{name} has no setting {setting!r}{which}")
    if isinstance(kind.settings[setting], str):
        if value not in EPILOGUES:
            which = did_you_mean(str(value), EPILOGUES) or f"; use {', '.join(EPILOGUES)}"
            raise UsageError(f"there is no {setting} {value!r}{which}")
        return
    least = kind.least.get(setting, -1 if setting == "pad" else 0)
    most = kind.most.get(setting, _MOST)
    if not isinstance(value, int) or not least <= value <= most:
        bounds = f"between {least} and {most}" if most < _MOST else f"of at least {least}"
        raise UsageError(f"{setting} of {name} must be a number {bounds}, not {value!r}")
