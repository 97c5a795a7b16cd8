"""All kernels and the runtime under sanitizers: no stray access, no undefined step, no race."""

from __future__ import annotations

import subprocess

import pytest
from runtime.cases import all_cases
from sanitizers.harness import Sanitizer, conforms

from tracea_graph.config import TOLERANCE
from tracea_graph.hardware import profile_cpu

pytestmark = pytest.mark.compiler
ISAS = profile_cpu().isas
CASES = all_cases()
MEMORY = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
THREADS = ("-fsanitize=thread",)
SHARED = (
    "gemm_chain_37x72_layout0", "gemm_then_norm", "elementwise_large", "attention_boolean",
    "attention_ordered_150_of_150", "attention_1_of_300", "embedding_int64_2x5",
)  # fmt: skip


def _links(flag: str) -> bool:
    """True if g++ has the sanitizer's library."""
    command = ["g++", flag, "-x", "c++", "-", "-o", "/dev/null"]
    code = "int main() { return 0; }"
    try:
        return not subprocess.run(command, input=code, text=True, capture_output=True).returncode
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Sanitizer:
    if not _links(MEMORY[0]):
        pytest.skip("g++ has no address sanitizer here")
    return Sanitizer(MEMORY, CASES, ISAS, tmp_path_factory.mktemp("memory"))


def test_no_kernel_leaves_its_memory(isa: str, memory: Sanitizer) -> None:
    answers = memory.run(CASES, isa, workers=2)
    for case in CASES:
        conforms(case, answers[case.name], TOLERANCE.kernel_f32)


def test_concurrent_runs_share_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    if not _links(THREADS[0]):
        pytest.skip("g++ has no thread sanitizer here")
    isa = next(level for level in reversed(ISAS) if level in ("scalar", "avx2", "avx512"))
    cases = [case for case in CASES if case.name in SHARED]
    assert len(cases) == len(SHARED)
    racing = Sanitizer(THREADS, cases, (isa,), tmp_path_factory.mktemp("threads"))
    answers = racing.run(cases, isa, workers=3, together=4, repeats=5)
    for case in cases:
        conforms(case, answers[case.name], TOLERANCE.kernel_f32)
