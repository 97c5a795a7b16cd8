"""What a target cannot compute in is settled before anything is planned."""

from __future__ import annotations

import pytest

from tracea_graph.errors import UsageError
from tracea_graph.kernels.cpu.isa_levels import host_levels
from tracea_graph.target import BACKENDS, backend_named, resolve_precision, target_of


def test_results_name_their_backend_and_old_ones_are_the_first_ones() -> None:
    assert [backend_named(b.name) for b in BACKENDS] == [*BACKENDS]
    assert backend_named("") is BACKENDS[0]
    with pytest.raises(UsageError, match="this version has no backend 'tpu'"):
        backend_named("tpu")


@pytest.mark.parametrize("target", [f"cpu:{isa}" for isa in host_levels()])
def test_bf16_stays_float32_where_it_would_be_emulated(target: str) -> None:
    precision, (note, *_) = resolve_precision(target, "bf16")
    assert precision == "fp32" and target.removeprefix("cpu:") in note


@pytest.mark.parametrize("precision", ["fp32", "bf16-weights"])
def test_other_precisions_need_no_instructions(precision: str) -> None:
    assert resolve_precision("cpu:scalar", precision)[0] == precision


def test_a_level_below_this_machine_is_not_timed_against_a_faster_original() -> None:
    *lower, highest = host_levels()
    assert resolve_precision(f"cpu:{highest}", "fp32") == ("fp32", ())
    assert target_of("host", "bf16").backend.unmeasured(host_levels("bf16")) == ""
    for level in lower:
        _, (note,) = resolve_precision(f"cpu:{level}", "fp32")
        assert f"cannot be limited to {level}" in note


def test_this_machine_says_whether_it_has_them() -> None:
    has = any(name.endswith("bf16") for name in host_levels("bf16"))
    precision, notes = resolve_precision("host", "bf16")
    assert (precision == "bf16") is has and bool(notes) is not has


def test_three_products_want_matrix_tiles() -> None:
    tiles = "amxbf16" in host_levels("bf16x2")
    precision, notes = resolve_precision("host", "bf16x2")
    assert (precision == "bf16x2") is tiles and bool(notes) is not tiles
