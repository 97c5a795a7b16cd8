"""Machines that run results: this one, and those that it emulates.

64-bit Arm with Linux runs under qemu, Windows under Wine.  What they run is fetched once into the
cache: Debian's Python for arm64 by apt, which needs no rights for that, and wheels by pip.  Each
has every release line of ONNX Runtime.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnxruntime
import pytest

from tracea_graph.config import Environment
from tracea_graph.toolchain.platforms import HERE

__all__ = [
    "NEEDS_ARM",
    "NEEDS_WINE",
    "NEEDS_X86",
    "RELEASES",
    "ROOT",
    "WINDOWS_RELEASES",
    "ArmLinux",
    "Linux",
    "Windows",
    "zig",
]

ROOT = Path(__file__).resolve().parents[2]
_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_SOURCE = f"deb [signed-by={_KEYS}] http://deb.debian.org/debian bookworm main\n"
_DEBIAN = ("python3", "libstdc++6")  # bookworm has Python 3.11
_NEWEST = onnxruntime.__version__
RELEASES = (
    "1.17.3", "1.18.1", "1.19.2", "1.20.1", "1.21.1", "1.22.1", "1.23.2", "1.24.4", "1.25.1",
    "1.26.0", "1.27.0", "1.28.0", "1.29.0", "1.30.0", "1.31.1", "1.32.0",
)  # fmt: skip
"""The last of every release line of ONNX Runtime that results run on."""
_OLD = ("1.17.3", "1.18.1")
"""Releases that know no NumPy 2, and whose wheels for Windows hold no DLL."""
WINDOWS_RELEASES = tuple(release for release in RELEASES if release not in _OLD)
_WHEELS = ("hypothesis", "ml_dtypes", "msgspec", "numpy", "onnx", "protobuf")
_CORES = 2
_CPUINFO = """processor\t: {}
BogoMIPS\t: 100.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd40
CPU revision\t: 1
"""
"""A processor as Arm's Linux describes it: Neoverse V1."""
_FETCH_SECONDS = 600.0


def _qemu() -> str | None:
    return shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")


def _unmet(needs: Mapping[str, object]) -> str:
    return ", ".join(name for name, found in needs.items() if not found)


_ZIG = importlib.util.find_spec("ziglang")
_ARM_NEEDS = _unmet({
    "the ziglang wheel": _ZIG, "qemu-user": _qemu(), "apt-get": shutil.which("apt-get"),
    "dpkg-deb": shutil.which("dpkg-deb"), "debian-archive-keyring": _KEYS.exists(),
    "CPython 3.11": sys.version_info[:2] == (3, 11),
})  # fmt: skip
_WINE_NEEDS = _unmet({"the ziglang wheel": _ZIG, "Wine": shutil.which("wine")})
_X86_NEEDS = _unmet({
    "the ziglang wheel": _ZIG, "Linux on x86-64": HERE.name == "linux-x86_64",
    "CPython 3.11": sys.version_info[:2] == (3, 11),
})  # fmt: skip
NEEDS_X86 = pytest.mark.skipif(bool(_X86_NEEDS), reason=f"needs {_X86_NEEDS}")
NEEDS_ARM = pytest.mark.skipif(bool(_ARM_NEEDS), reason=f"needs {_ARM_NEEDS}")
NEEDS_WINE = pytest.mark.skipif(bool(_WINE_NEEDS), reason=f"needs {_WINE_NEEDS}")


def _folder(name: str) -> Path:
    return Environment().cache / "emulation" / name


def _run(command: Sequence[str], **environment: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_FETCH_SECONDS,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
    return done.stdout


def _wheels(folder: Path, platform: str, *names: str) -> Path:
    """Wheels for another platform, unpacked."""
    if not (ready := folder / "ready").exists():
        _run((
            sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder),
            "--upgrade", "--only-binary=:all:", "--implementation", "cp", "--python-version",
            "3.11", *(f"--platform={p}" for p in platform.split()), *names,
        ))  # fmt: skip
        ready.touch()
    return folder


def _manylinux(machine: str) -> str:
    newer = " ".join(f"manylinux_2_{minor}_{machine}" for minor in (17, 26, 27, 28))
    return f"{newer} manylinux2014_{machine}"


def _runtime(system: str, platform: str, release: str) -> Path:
    """A release of ONNX Runtime for a system, with a NumPy that it knows."""
    numpy = ("numpy==1.26.4",) if release in _OLD else ()
    folder = _folder(f"onnxruntime-{release}-{system}")
    return _wheels(folder, platform, f"onnxruntime=={release}", *numpy)


def _python(
    command: Sequence[str], paths: Sequence[object], seconds: float, **environment: str
) -> str:
    """Run Python with arguments in the checkout; returns what it printed."""
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=seconds,
        env={**os.environ, "PYTHONPATH": ":".join(map(str, paths)), **environment},
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-4000:]} {done.stderr[-2000:]}"
    return done.stdout


def zig(target: str) -> tuple[str, ...]:
    """The C++ compiler for another platform, as a command that needs no Python."""
    assert _ZIG is not None and _ZIG.origin is not None
    return (str(Path(_ZIG.origin).with_name("zig")), "c++", "-target", target)


def _script(path: Path, *words: str) -> Path:
    """A script that runs a command of this machine with the script's arguments.

    It is replaced as a whole, since another test run may be about to start it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text("#!/bin/sh\nexec " + " ".join(f'"{word}"' for word in words) + ' "$@"\n')
    draft.chmod(0o755)
    return draft.replace(path)


class Linux:
    """This machine's Python with a release of onnxruntime."""

    def __init__(self, release: str) -> None:
        self.site = _runtime("x86_64", _manylinux("x86_64"), release)

    def run(self, *args: str, seconds: float, **environment: str) -> str:
        """Run Python with arguments in the checkout; returns what it printed."""
        return _python((sys.executable, *args), (self.site, ROOT), seconds, **environment)


class ArmLinux:
    """Python and onnxruntime of 64-bit Arm under qemu-user, on a processor with all it has."""

    def __init__(self, release: str = _NEWEST) -> None:
        self.root = self._debian(_folder("debian-arm64"))
        platforms = _manylinux("aarch64")
        self.sites = (
            _runtime("aarch64", platforms, release),
            _wheels(_folder("wheels-aarch64"), platforms, *_WHEELS),
        )
        # programs of this machine start there, too
        self.compiler = zig("aarch64-linux-gnu.2.28")
        # what Python takes for itself and starts again for its workers
        self.python = _script(
            _folder("bin") / "python3", str(_qemu()), "-0", "$0", "-L", str(self.root),
            str(self.root / "usr/bin/python3"),
        )  # fmt: skip

    def run(self, *args: str, seconds: float, **environment: str) -> str:
        """Run Python with arguments in the checkout; returns what it printed."""
        paths = (*self.sites, ROOT, sysconfig.get_path("purelib"))
        own = {"CXX": shlex.join(self.compiler), "TRACEA_CACHE": str(_folder("cache-arm"))}
        return _python((str(self.python), *args), paths, seconds, **{**own, **environment})

    def compile(self, *args: str) -> None:
        """Run the C++ compiler with arguments."""
        _run((*self.compiler, *args))

    def execute(self, program: Path, core: str) -> int:
        """Run a program on a core as qemu calls it; returns its exit code."""
        command = (str(_qemu()), "-cpu", core, "-L", str(self.root), str(program))
        return subprocess.run(command, check=False, timeout=_FETCH_SECONDS).returncode

    @staticmethod
    def _debian(root: Path) -> Path:
        if (ready := root / "ready").exists():
            return root
        apt = root.with_name("apt")
        for part in ("lists/partial", "cache/archives/partial"):
            (apt / part).mkdir(parents=True, exist_ok=True)
        (apt / "status").touch()
        (apt / "sources.list").write_text(_SOURCE)
        settings = (
            "APT::Architecture=arm64", "APT::Architectures=arm64", "APT::Sandbox::User=",
            f"Dir::State={apt}", f"Dir::State::lists={apt / 'lists'}", "Debug::NoLocking=1",
            f"Dir::State::status={apt / 'status'}", f"Dir::Cache={apt / 'cache'}",
            f"Dir::Etc::sourcelist={apt / 'sources.list'}", "Dir::Etc::sourceparts=/dev/null",
            "Dir::Etc::preferencesparts=/dev/null",
        )  # fmt: skip
        command = ("apt-get", "-q", "-y", *(w for setting in settings for w in ("-o", setting)))
        _run((*command, "update"))
        _run((*command, "--no-install-recommends", "--download-only", "install", *_DEBIAN))
        for package in sorted((apt / "cache/archives").glob("*.deb")):
            _run(("dpkg-deb", "-x", str(package), str(root)))
        # qemu shows this machine's, of which ONNX Runtime for Arm makes nothing
        (root / "proc").mkdir()
        (root / "proc/cpuinfo").write_text("\n".join(_CPUINFO.format(i) for i in range(_CORES)))
        ready.touch()
        return root


class Windows:
    """onnxruntime's DLL under Wine, and a program that runs models in it."""

    def __init__(self, release: str = _NEWEST) -> None:
        wheels = _runtime("windows", "win_amd64", release)
        self.runtime = wheels / "onnxruntime/capi/onnxruntime.dll"
        self.host = _folder("bin") / "host.exe"
        self.host.parent.mkdir(parents=True, exist_ok=True)
        source = ROOT / "tests/toolchain/windows_host.cpp"
        _run((*zig("x86_64-windows-gnu"), "-O1", str(source), "-o", str(self.host)))

    def run(self, *args: str, seconds: float, **environment: str) -> str:
        """Run the program with arguments; returns what it printed."""
        prefix = _folder("wine")
        prefix.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ("wine", str(self.host), str(self.runtime), *args), capture_output=True, text=True,
            timeout=seconds,
            env={**os.environ, "WINEDEBUG": "-all", "WINEPREFIX": str(prefix), **environment},
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout[-2000:]} {done.stderr[-2000:]}"
        return done.stdout
