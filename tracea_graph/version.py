"""Versions of this package and of the packages its results depend on."""

from __future__ import annotations

from functools import cache

__all__ = ["VERSION", "runtime_conflict", "versions"]

VERSION = "0.1.0"


_PACKAGES = ("onnx", "numpy", "networkx")
_RUNTIMES = (
    "onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml",
    "onnxruntime-training", "onnxruntime-rocm", "onnxruntime-migraphx", "onnxruntime-qnn",
)  # fmt: skip
"""Distributions that all install the package ``onnxruntime``."""


def versions() -> dict[str, str]:
    """Return the versions of this tool and its dependencies, whatever provides onnxruntime."""
    found = {"tracea": _version("tracea-graph")} | {name: _version(name) for name in _PACKAGES}
    return found | {"onnxruntime": next(iter(_runtimes().values()), "unknown")}


def runtime_conflict() -> str:
    """Return a sentence if several distributions provide onnxruntime; else empty.

    They write equally named files: the last one installed runs, mixed with parts of the others.
    """
    found = [f"{name} {version}" for name, version in _runtimes().items()]
    if len(found) < 2:
        return ""
    return (
        f"{' and '.join(found)} are installed together and overwrite each other's files: "
        "uninstall all of them, then install one"
    )


@cache
def _runtimes() -> dict[str, str]:
    known = {name: _version(name) for name in _RUNTIMES}
    return {name: version for name, version in known.items() if version != "unknown"}


@cache
def _version(package: str) -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
