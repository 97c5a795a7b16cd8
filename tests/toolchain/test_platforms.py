"""Libraries for other platforms: their names, levels, files, and which one a session takes."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.deploy.emulation import zig
from tests.toolchain.binaries import AD_HOC, mach_o, needed
from tests.toolchain.machine_code import OBJDUMP, instructions, overwritten, windows_functions
from tracea_graph.config import Environment
from tracea_graph.errors import UsageError
from tracea_graph.hardware.cpu_features import arm_features
from tracea_graph.kernels.cpu.isa_levels import ARM, X86, host_levels
from tracea_graph.kernels.cpu.platform_deployment import Deployment, build_all, deployments_of
from tracea_graph.kernels.program import LibraryContents
from tracea_graph.onnx_io import library_of
from tracea_graph.target import resolve_precision, target_of
from tracea_graph.toolchain import Library
from tracea_graph.toolchain.compilers import find_compiler
from tracea_graph.toolchain.platforms import HERE, PLATFORMS, library_paths

ROOT = Path(__file__).resolve().parents[2]
NEEDS_ZIG = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None, reason="needs the ziglang wheel"
)
NEEDS_OBJDUMP = pytest.mark.skipif(OBJDUMP is None, reason="needs llvm-objdump")
MAGIC = {".so": b"\x7fELF", ".dll": b"MZ", ".dylib": b"\xcf\xfa\xed\xfe"}
SYSTEM = {
    ".so": ("libc.", "libpthread.", "libm."),
    ".dll": ("kernel32.dll", "ntdll.dll", "api-ms-win-crt-"),
    ".dylib": ("/usr/lib/libsystem.",),
}
"""What names of libraries begin with that every installation of a system has."""
ELF_MACHINE = {"x86_64": 62, "aarch64": 183}
"""Numbers of architectures in ELF's header."""
EXPORTED = ("RegisterCustomOps", "tracea_", "_mh_dylib_header", "__dso_handle")
"""What names that a library exports begin with, and the two that macOS' linker adds."""
HIGHEST = {"x86_64": "avx2", "aarch64": "neon"}
"""The level that the libraries of these tests are built for."""
MULTIPLIES = {"x86_64": r"vfmadd231ps .*%ymm", "aarch64": r"fmla\S* .*v\d"}
ABOVE = {
    "x86_64": r".*%(zmm|k[0-7]|[xy]mm(1[6-9]|[23]\d))|vpdp",
    "aarch64": r"(us|su|[su])dot|bfdot|bfm|[us]mmla|.*\bz\d+\.",
}
"""Instructions of higher levels."""
APPLE = "macos-aarch64"
"""The platform whose every processor multiplies bytes: zig's code for it may do so too."""
RESERVED = r".*(?<!\[)\b[xw]18\b"
"""The register that macOS and Windows keep for themselves on Arm; Windows' points to the
thread's own memory, which code reads through it."""


def places(*names: str) -> list[str]:
    return [p.name for p in library_paths(Path("m.onnx"), tuple(PLATFORMS[n] for n in names))]


@pytest.mark.parametrize("name", PLATFORMS)
def test_every_platform_has_the_levels_of_its_processors(name: str) -> None:
    target = target_of(name, "fp32")
    family = ARM if name.split("-")[1] == "aarch64" else X86
    assert target.levels == tuple(isa.name for isa in family.of("int8"))
    assert bool(target.backend.unmeasured(target.levels)) == (PLATFORMS[name] != HERE)


def test_a_level_cuts_the_chain_and_a_precision_adds_to_it() -> None:
    (arm,) = deployments_of(["linux-aarch64:neondot"], "fp32")
    assert arm == Deployment(PLATFORMS["linux-aarch64"], ("scalar", "neon", "neondot"))
    assert deployments_of(["linux-aarch64"], "bf16")[0].levels[-1] == "neonbf16"


def test_fp16_stands_beside_the_chain() -> None:
    own = ("scalar", "neon", "neondot", "neonfp16")
    for name, levels in (("", (*own[:3], "neoni8mm", "neonfp16")), (":neonfp16", own)):
        (arm,) = deployments_of([f"linux-aarch64{name}"], "fp16")
        assert arm.levels == levels
    assert "neonfp16" not in deployments_of(["linux-aarch64"], "bf16")[0].levels


@pytest.mark.parametrize(
    ("names", "precision", "why"),
    [
        ("linux-aarch64", "fp16", ""),
        ("macos-aarch64,windows-aarch64", "fp16", ""),
        ("linux-aarch64:neon", "fp32", "neon, the highest level here, has no instructions"),
        ("linux-aarch64,windows-x86_64", "fp32", "has no kernels for windows-x86_64"),
        ("windows-x86_64,linux-aarch64", "fp32", "kernels for bf16 instead (--precision bf16)"),
    ],
)
def test_fp16_is_computed_where_every_target_has_it(names: str, precision: str, why: str) -> None:
    resolved, notes = resolve_precision(names, "fp16")
    assert resolved == precision and why in " ".join(notes)
    assert ("computed in fp16" in " ".join(notes)) == bool(why)


def test_several_targets_are_planned_for_the_first() -> None:
    target = target_of("host,linux-aarch64,windows-x86_64", "fp32")
    assert target.levels[-1] in host_levels("int8") and not target.backend.unmeasured(
        target.levels
    )
    elsewhere = [p for p in ("linux-aarch64", "windows-x86_64") if PLATFORMS[p] != HERE]
    _, notes = resolve_precision("host,linux-aarch64,windows-x86_64", "fp32")
    assert all(name in " ".join(notes) for name in elsewhere)


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ("linux-sparc", "there is no target"),
        ("host,linux-sparc", "no platform 'linux-sparc'"),
        ("linux-aarch64:avx2", "no level 'avx2'"),
        ("linux-aarch64,linux-aarch64:neon", "twice"),
    ],
)
def test_names_that_are_refused(names: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        target_of(names, "fp32")


def test_the_first_library_of_a_suffix_has_the_models_name() -> None:
    assert places("linux-aarch64", "windows-x86_64") == ["m.so", "m.dll"]
    assert places("linux-x86_64", "linux-aarch64", "linux-x86_64-musl") == [
        "m.so", "m.aarch64.so", "m.x86_64-musl.so",
    ]  # fmt: skip
    assert places("macos-aarch64", "macos-x86_64") == ["m.dylib", "m.x86_64.dylib"]


def result(folder: Path, digests: dict[str, str], bodies: bool) -> Path:
    """A result whose libraries have these digests by platform."""
    tensor = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    node = helper.make_node("Op", ["x"], ["y"], domain="tracea.0123456789")
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("tracea.0123456789", 1)]
    body = helper.make_function(
        "tracea.0123456789", "Op", ["x"], ["y"], [helper.make_node("Identity", ["x"], ["y"])],
        imports[:1],
    )  # fmt: skip
    model = helper.make_model(
        helper.make_graph([node], "g", [tensor], [out]), opset_imports=imports,
        functions=[body] if bodies else [],
    )  # fmt: skip
    listed = " ".join(f"{name}={digest}" for name, digest in digests.items())
    first = next(iter(digests.values()))
    facts = {"tracea.library.sha256": first, "tracea.library.platforms": listed}
    helper.set_model_props(model, facts)
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def test_a_session_takes_its_own_platforms_library(tmp_path: Path) -> None:
    other = next(name for name in PLATFORMS if PLATFORMS[name].suffix == HERE.suffix != HERE.name)
    own, plain = tmp_path / f"m{HERE.ending}", tmp_path / f"m{HERE.suffix}"
    own.write_bytes(b"mine"), plain.write_bytes(b"another's")
    sums = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (plain, own)]
    model = result(tmp_path, {f"{other}-x": sums[0], HERE.name: sums[1]}, bodies=True)
    assert library_of(model) == own


def test_without_a_library_for_it_a_platform_runs_the_bodies(tmp_path: Path) -> None:
    (tmp_path / f"m{HERE.suffix}").write_bytes(b"another's")
    assert library_of(result(tmp_path, {"plan9-mips": "0"}, bodies=True)) is None
    with pytest.raises(UsageError, match=f"has none for {HERE.name}"):
        library_of(result(tmp_path, {"plan9-mips": "0"}, bodies=False))


def test_arms_features_come_from_the_auxiliary_vector(tmp_path: Path) -> None:
    auxv = tmp_path / "auxv"
    pairs = ((16, 1 << 1 | 1 << 20), (26, 1 << 13), (0, 0))
    auxv.write_bytes(b"".join(struct.pack("<QQ", *pair) for pair in pairs))
    assert arm_features(auxv) == {"asimd", "asimddp", "i8mm"}
    assert arm_features(tmp_path / "none") == frozenset()


@NEEDS_ZIG
@pytest.mark.parametrize("name", PLATFORMS)
def test_a_compiler_is_found_without_a_trace(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    assert find_compiler(platform=PLATFORMS[name]).identity
    assert not list(tmp_path.iterdir())


@NEEDS_ZIG
@pytest.mark.parametrize(
    ("target", "system"),
    [
        ("x86_64-windows-gnu", "windows"),
        ("aarch64-windows-gnu", "windows"),
        ("arm64-apple-macosx11.0", "darwin"),
    ],
)
def test_the_runtime_is_valid_with_the_headers_of_other_systems(target: str, system: str) -> None:
    """Checks names and types alone, by zig's clang: zig itself first compiles a C library."""
    compiler = Path(zig(target)[0])
    headers = (
        "-nostdinc",
        *(f"-isystem{compiler.parent / 'lib' / folder}"
          for folder in ("include", f"libc/include/any-{system}-any")),
        *(f"-I{ROOT / folder}" for folder in ("kernels/cpu", "kernels")),
    )  # fmt: skip
    done = subprocess.run(
        (str(compiler), "clang", "-target", target, "-std=c++17", "-fsyntax-only", *headers,
         *map(str, (ROOT / "kernels/cpu/runtime").glob("*.cpp"))),
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def built_for(name: str, folder: Path) -> Library:
    """A platform's library of products in fp32."""
    level = HIGHEST[PLATFORMS[name].machine]
    return build_all(
        deployments_of([f"{name}:{level}"], "fp32"), LibraryContents(kernels=["gemm"]),
        folder / "m.onnx", Environment(), quick=False,
    )  # fmt: skip


OTHERS = [name for name in PLATFORMS if PLATFORMS[name] != HERE]
"""Platforms that libraries are cross-compiled for."""


@NEEDS_ZIG
@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_a_library_of_every_platform_links(name: str, tmp_path: Path) -> None:
    made = built_for(name, tmp_path)
    data = made.path.read_bytes()
    assert made.platform == name and not made.runs_here
    assert data.startswith(MAGIC[made.path.suffix]) and b"RegisterCustomOps\0" in data
    libraries = needed(data)
    assert libraries and not {n for n in libraries if not n.startswith(SYSTEM[made.path.suffix])}
    if made.path.suffix == ".so":
        assert struct.unpack_from("<H", data, 18)[0] == ELF_MACHINE[PLATFORMS[name].machine]
    elif made.path.suffix == ".dylib":
        header = mach_o(data)
        assert header.oldest == (11, 0)
        assert header.exported and all(n.startswith(EXPORTED) for n in header.exported)
        # Apple's processors run nothing that is not signed at all
        assert header.signing is not None or PLATFORMS[name].machine == "x86_64"
        assert header.signing is None or header.signing & AD_HOC


@NEEDS_ZIG
@NEEDS_OBJDUMP
@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_machine_code_is_of_its_level_and_keeps_what_its_system_reserves(
    name: str, tmp_path: Path
) -> None:
    library, platform = built_for(name, tmp_path).path, PLATFORMS[name]
    code = [text for _, text in instructions(library)]
    assert sum(bool(re.match(MULTIPLIES[platform.machine], line)) for line in code) > 100
    above = ABOVE[platform.machine].replace("|[su])dot", ")dot" if name == APPLE else "|[su])dot")
    assert not [line for line in code if re.match(above, line)]
    if platform.machine == "aarch64" and library.suffix != ".so":
        assert not [line for line in code if re.match(RESERVED, line)]
    if library.suffix == ".dll" and platform.machine == "x86_64":
        functions = windows_functions(library.read_bytes())
        assert any(function.saved for function in functions)
        assert not [function for function in functions if function.handles]
        assert not overwritten(library)


@NEEDS_ZIG
@NEEDS_OBJDUMP
@pytest.mark.slow
def test_registers_that_a_windows_function_does_not_save_are_found(tmp_path: Path) -> None:
    source, library = tmp_path / "f.cpp", tmp_path / "f.dll"
    source.write_text("\n".join(
        f'extern "C" __declspec(dllexport) void {name}() {{ asm volatile("{code}"{kept}); }}'
        for name, code, kept in (
            ("good", "xorps %%xmm7, %%xmm7", ' ::: "xmm7"'),
            ("bad", "xorps %%xmm6, %%xmm6", " ::"),
        )
    ))  # fmt: skip
    command = (*zig("x86_64-windows-gnu"), "-O1", "-shared", "-nostdlib++", str(source),
               "-o", str(library))  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    assert list(overwritten(library).values()) == [{6}]


def test_no_module_needs_posix_to_be_imported() -> None:
    """What only POSIX has is imported where the platform was asked for first."""
    posix = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "termios", "tty"}
    found = [
        (path.name, alias.name)
        for folder in ("tracea_graph", "kernels", "passes")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name in posix
    ]
    assert found == []
