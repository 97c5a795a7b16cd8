"""The doctor's findings and kernel decisions as tables and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from tracea_graph.hardware.gpu import Gpu
from tracea_graph.hardware.health_report import BackendHealth, Health, RuntimeHealth
from tracea_graph.hardware.machine_measurements import Measurements
from tracea_graph.policy import KernelPlan
from tracea_graph.views.terminal_tables import (
    Column,
    FittedTable,
    format_three_digits,
    new_table,
    text_cell,
)

__all__ = ["render_health", "render_kernel_choice"]


_READ = {"dram_all": "DRAM, all cores", "lines": "lines of other cores"}
"""Words for what is read, where these are not the name in capitals."""


def render_health(health: Health) -> RenderableType:
    """Return tables of the machine, its measurements, and what is missing or broken."""
    return Group(*_health(health))


def render_kernel_choice(plan: KernelPlan) -> RenderableType:
    """Return a problem's kernel with its reasons, then the other variants with theirs."""
    sizes = ", ".join(f"{name} {size}" for name, size in plan.sizes.items())
    parts: list[RenderableType] = [
        Text(f"{plan.op} on {plan.target}, {plan.precision}: {plan.variant_id}", style="bold"),
        Text(f"  {sizes}"),
    ]
    if plan.us is not None:
        rate = f", {format_three_digits(plan.gflops)} GFLOP/s" if plan.gflops else ""
        parts.append(Text(f"  modelled {_time(plan.us)}{rate}"))
    parts += [Text(f"  {reason}") for reason in plan.reasons]
    parts += [Text(f"note: {note}") for note in (plan.shape_note, plan.precision_note) if note]
    if plan.rejected:
        table = new_table("other variants")
        table.add_column("variant")
        table.add_column("why not", folds=True)
        for other in plan.rejected:
            table.add_row(text_cell(other.variant_id), text_cell(other.why))
        parts += ["", table]
    return Group(*parts)


def _health(health: Health) -> Iterator[RenderableType]:
    yield _machine(health)
    for figures in filter(None, (backend.figures for backend in health.backends)):
        yield _figures(figures)
        yield from (Text(f"note: {note}") for note in figures.notes)
    if health.gpus.devices:
        yield _gpus(health.gpus.devices)
    yield from (Text(note) for note in health.gpus.notes)
    if health.runtime.warning:
        yield Text(f"warning: {health.runtime.warning}")
        yield Text(f"repair:  {health.runtime.repair}")


def _machine(health: Health) -> FittedTable:
    cpu = health.cpu
    compilers = dict.fromkeys(b.figures.compiler for b in health.backends if b.figures)
    table = FittedTable("machine", [Column("figure"), Column("value", folds=True)], headed=False)
    rows = (
        ("processor", cpu.model),
        ("cores, threads", f"{cpu.cores}, {cpu.threads} usable"),
        *((f"{backend.name} kernels", _levels(backend)) for backend in health.backends),
        ("caches", f"L1 {_bytes(cpu.l1d)}, L2 {_bytes(cpu.l2)}, L3 {_bytes(cpu.l3)}"),
        ("compiler", " ".join(filter(None, compilers)) or "none"),
        ("ONNX Runtime", _runtime(health.runtime)),
        ("fingerprint", health.fingerprint),
    )
    for name, value in rows:
        table.add_row(name, value)
    return table


def _levels(backend: BackendHealth) -> str:
    """``LEVEL LEVEL, with FEATURE``, or why they cannot run here."""
    levels = " ".join(backend.levels)
    if backend.problem:
        return f"built for {levels}; {backend.problem}"
    return f"{levels}, with {' '.join(backend.features)}" if backend.features else levels


def _figures(figures: Measurements) -> FittedTable:
    how = f"measured in {figures.seconds:.1f} s" if figures.measured else "derived, not measured"
    table = new_table(f"{escape(figures.device)}, {how}")
    table.add_column("figure")
    table.add_column("value", "right")
    for peak in figures.peaks:
        table.add_row(f"{peak.dtype} multiply-add, {peak.level}", _rate(peak.gops))
    for name, value in asdict(figures.bandwidth).items():
        if value:
            label = _READ.get(name, name.upper())
            table.add_row(f"read {label}", f"{value:.0f} GB/s")
    table.add_row("clock", f"{figures.ghz:.2f} GHz")
    for further in figures.further:
        table.add_row(
            text_cell(further.name), f"{format_three_digits(further.value)} {further.unit}"
        )
    if figures.core_groups:
        label = (
            "groups of near cores" if "/" in figures.core_groups else "near cores, no clear gap"
        )
        table.add_row(label, text_cell(figures.core_groups))
    if figures.wake_sleeping:
        table.add_row("waking sleeping threads", _time(figures.wake_sleeping))
        table.add_row("starting spinning threads", _time(figures.wake_spinning))
    return table


def _gpus(devices: tuple[Gpu, ...]) -> FittedTable:
    table = new_table("GPUs")
    names = ("name", "capability", "units", "shared", "L2", "memory", "driver", "tensor cores")
    for name in names:
        table.add_column(name)
    for d in devices:
        sizes = (d.shared_memory, d.l2, d.memory)
        cells = (
            d.name if d.name.startswith(d.vendor) else f"{d.vendor} {d.name}",
            d.capability,
            str(d.units or "?"),
            *map(_bytes, sizes),
            d.driver,
            " ".join(d.tensor_dtypes),
        )
        table.add_row(*map(escape, cells))
    return table


def _runtime(runtime: RuntimeHealth) -> str:
    if not runtime.version:
        return "cannot be imported"
    return f"{runtime.version} ({', '.join(runtime.providers)})"


def _bytes(count: int) -> str:
    """``48 KiB``; ``?`` for 0."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return "?"


def _rate(gops: float) -> str:
    """Return 1e9 operations per second in words: Top/s from 10,000 on."""
    return f"{gops:.0f} Gop/s" if gops < 1e4 else f"{gops / 1e3:.0f} Top/s"


def _time(us: float) -> str:
    return f"{us:.3g} µs" if us < 1000 else f"{us / 1000:.3g} ms"
