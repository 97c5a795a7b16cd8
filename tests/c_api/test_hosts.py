"""C and C++ programs against a stand-alone library, by hand and through its CMake package."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tracea_graph.commands.build_kernel_library import KernelLibrary

HOSTS = Path(__file__).with_name("hosts")
LIBRARIES = {"launch.c": ("runtime",), "device.cpp": ("kernels", "runtime")}
"""What programs link, if not the kernels alone."""
STRICT = ("-O1", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")


def compiled(built: KernelLibrary, compiler: str, source: str, out: Path, *flags: str) -> Path:
    """Compile a program beside no other file of this package."""
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler} on this machine")
    library = built.path.parent
    command = [
        compiler, *STRICT, *flags, f"-I{built.include}", str(HOSTS / source), "-o", str(out),
        f"-L{library}", *(f"-ltracea_{name}" for name in LIBRARIES.get(source, ("kernels",))),
        f"-Wl,-rpath,{library}", "-lm", "-pthread",
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=300)
    return out


def output_of(program: Path, *args: Path) -> str:
    ran = subprocess.run([program, *args], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, f"exit code {ran.returncode}: {ran.stdout}{ran.stderr}"
    return ran.stdout


@pytest.mark.parametrize(
    ("compiler", "standard"),
    [("gcc", "c99"), ("clang", "c99"), ("gcc", "c11"), ("g++", "c++17"), ("clang++", "c++17")],
)
def test_c_programs_multiply_matrices(
    built: KernelLibrary, compiler: str, standard: str, tmp_path: Path
) -> None:
    language = ("-x", "c++") if "++" in compiler else ()
    program = compiled(built, compiler, "gemm.c", tmp_path / "host", f"-std={standard}", *language)
    refused, isa = output_of(program).splitlines()
    assert refused.startswith("refused: The shapes of a, b and c do not fit")
    assert isa in built.levels


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_cpp_programs_convolve_on_several_threads(
    built: KernelLibrary, compiler: str, tmp_path: Path
) -> None:
    program = compiled(built, compiler, "conv2d.cpp", tmp_path / "host", "-std=c++17")
    refused, isa = output_of(program).splitlines()
    assert refused == "refused: y has 9 columns, but must have 10."
    assert isa.endswith(", 2 threads")


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_modules_are_loaded_and_their_kernels_launched(
    built: KernelLibrary, compiler: str, tmp_path: Path
) -> None:
    program = compiled(built, compiler, "launch.c", tmp_path / "host", "-std=c99")
    newer, shapes, used, isa, none = output_of(program, built.path).splitlines()
    assert newer == "newer: The program needs version 1.2 of tsr.h, this is 1.1."
    assert shapes.startswith("shapes: The shapes of a, b and c do not fit")
    assert used == "in use: The context still has 2 modules and streams."
    assert isa in built.levels
    assert none.startswith(
        "device: There is no backend for device 99: this library is for the CPU"
    )
    refused = subprocess.run([program, "/dev/null"], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "module: /dev/null: file too short" in refused.stdout


def test_cmake_finds_the_package(built: KernelLibrary, tmp_path: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("there is no cmake on this machine")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.10)\n"
        "project(host C)\n"
        "find_package(tracea 1.0 CONFIG REQUIRED)\n"
        'message(STATUS "ops: ${tracea_OPS}")\n'
        f'add_executable(host "{HOSTS / "gemm.c"}")\n'
        "target_link_libraries(host tracea::kernels m)\n"
    )
    prefix = built.path.parents[1]
    options = (f"-DCMAKE_PREFIX_PATH={prefix}", "-B", str(tmp_path / "build"), str(tmp_path))
    shown = subprocess.run(["cmake", *options], check=True, capture_output=True, text=True)
    assert "ops: gemm;conv2d;attention;norm" in shown.stdout
    subprocess.run(["cmake", "--build", tmp_path / "build"], check=True, capture_output=True)
    assert "refused" in output_of(tmp_path / "build" / "host")


def test_what_a_library_holds_is_written_beside_it(built: KernelLibrary) -> None:
    facts = json.loads(built.path.with_suffix(".json").read_text())
    assert facts["ops"] == ["gemm", "conv2d", "attention", "norm"]
    assert facts["levels"] == list(built.levels)
    assert facts["abi"] == "1.2"
