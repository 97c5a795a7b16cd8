"""Which calls of a program wait for rows, and which for a barrier, by the cost model.

Between two calls a team either has a barrier, or tasks of the second wait for the rows they read
(``runtime/linked_calls.h``).  Predicted for T threads, per call:

* linked, in the order of rows: each thread hands over a few cache lines a task; ``c`` chunks of
  rows mean that c threads read each weight, and each thread reads the rows of one chunk;
* with a barrier: the slowest thread's tail and the hand-overs of all threads; tasks are in the
  order of columns then, so few threads read each weight, and each thread reads all rows.

Arithmetic, weights and rows that other cores wrote add up: so the model explains both that
BERT's large products gain by columns and that MiniLM's lose (``models/RESULTS.md``).  Weights come
from L3 if all of the program fit there, else from memory, whose bandwidth all threads share.

Where cores are several groups that share no L3, neighbouring tasks go to one group
(``runtime/team_positions.h``): in the order of columns a weight is read by one of them, but most
rows come from others; in the order of rows each group reads all weights, and the rows are its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from tracea_graph.kernels.cpu.panels import PANEL
from tracea_graph.kernels.cpu.schedule import GEMM_SCHEDULES
from tracea_graph.kernels.program import Call
from tracea_graph.policy import Machine, OperatorTopology
from tracea_graph.policy.cost_coefficients import packaged_coefficients

__all__ = [
    "LINKED_THREADS",
    "MOST_THREADS",
    "CallLink",
    "choose_links",
    "divide_product",
    "with_links",
]

LINKED_THREADS, MOST_THREADS = 5, 64
"""Threads from which on calls may be linked (with fewer, barriers were measured to take less), and
the most in a team: ``kLinkedThreads`` and ``kMaxTeam`` of the runtime."""
_NEVER = MOST_THREADS + 1
_LINKED = ("norm", "attention", "conv", "depthwise", "winograd", "conv_dispatch", "pool")
"""Calls besides products between which rows, or lines of images, may be waited for."""
_PRODUCTS = {"panels": (4, 4), "vnni2": (2, 2), "weight_only_bf16": (2, 4), "bf16x2": (4, 4)}
"""Bytes of a weight and of an element of x by the layouts of products that may be linked."""
_UNEVEN = 0.5
"""What the slowest of several threads adds, in tasks: ``kUneven`` of the runtime."""
_LINES_PER_TASK = 2
"""Lines handed over for a task: the counters of the rows that it reads, and that it computes."""
_WIDEST = 3
"""Panels of the widest register tiles, which AVX-512 kernels have."""
_NEAR_NUMBERS = 192 * 1024
"""Numbers of a column of weights that stay in a core's cache: ``kNearFloats`` of the runtime."""
_THREADS_PER_LINE = 4
"""Lines of other threads that the lead of a team reads in the time of one, at a barrier."""
_MOST_ROWS = 1 << 20
_CLEARLY = 0.95
"""Predicted time, over that with links, up to which a barrier is chosen: the model is rough."""


@dataclass(frozen=True)
class CallLink:
    """From ``barrier_from`` threads on a barrier stands before a call; 0: the library decides.

    It does so for up to ``barrier_rows`` rows; 0: for any number.  ``reason`` is empty if the
    library decides.
    """

    barrier_from: int = 0
    barrier_rows: int = 0
    reason: str = ""


@dataclass(frozen=True)
class _Ways:
    """Predicted µs of a call on some threads: linked, and with a barrier before the next one."""

    linked: float
    apart: float
    readers: int = 1
    memory_us: float = 0.0

    @property
    def waits(self) -> bool:
        """Whether a barrier is clearly faster."""
        return self.apart <= self.linked * _CLEARLY


def choose_links(
    calls: Sequence[tuple[Call, OperatorTopology]], machine: Machine
) -> tuple[CallLink, ...]:
    """Choose for each call of a program, with its topology under assumed sizes.

    The library decides about all of them if the machine's figures of several cores are unknown.
    """
    if machine.handover_us <= 0:
        return tuple(CallLink() for _ in calls)
    held = sum(_weight_bytes(call, one) for call, one in calls)
    near = held <= machine.levels[1].bytes / machine.levels[1].parts
    return tuple(_choose(call, one, machine, near) for call, one in calls)


def with_links(calls: Sequence[Call], links: Sequence[CallLink]) -> Iterator[Call]:
    """Yield the calls with what was chosen for them."""
    for call, link in zip(calls, links, strict=True):
        yield replace(call, barrier_from=link.barrier_from, barrier_rows=link.barrier_rows)


def _weight_bytes(call: Call, topology: OperatorTopology) -> float:
    layout = call.attributes.get("layout") if call.op == "gemm" else None
    size = _PRODUCTS[layout][0] if layout in _PRODUCTS else 4
    return float(size * topology.k * topology.n) if call.op == "gemm" else 0.0


def _choose(call: Call, topology: OperatorTopology, machine: Machine, near: bool) -> CallLink:
    product = call.op == "gemm" and call.attributes["layout"] in _PRODUCTS and topology.batch == 1
    if not product and call.op not in _LINKED:
        return CallLink()

    def ways(threads: int, rows: int = topology.m) -> _Ways:
        make = _product if product else _rows
        return make(call, replace(topology, m=rows), machine, threads, near)

    most = min(max(machine.cores, LINKED_THREADS), MOST_THREADS)
    found = _NEVER
    for threads in range(most, LINKED_THREADS - 1, -1):
        if not ways(threads).waits:
            break
        found = threads
    rows = topology.m if found < _NEVER and not topology.static else 0
    while 0 < rows < _MOST_ROWS and ways(most, 2 * rows).waits:
        rows *= 2
    return CallLink(found, rows, _reason(found, rows, most, ways(most)))


def _reason(found: int, rows: int, at: int, ways: _Ways) -> str:
    times = f"{ways.linked:.3g} µs instead of {ways.apart:.3g} on {at} threads"
    if found == _NEVER:
        return f"linked: its tasks wait for rows, {times} with a barrier"
    whose = f"{ways.readers} threads would read each weight, {ways.memory_us:.3g} µs"
    waits = f"{ways.apart:.3g} µs instead of {ways.linked:.3g} on {at} threads"
    first = f"a barrier from {found} threads on" if found > LINKED_THREADS else "a barrier"
    first += f" up to {rows} rows" if rows else ""
    return f"{first}, tasks in the order of columns: {waits}, where {whose}"


def _product(
    call: Call, one: OperatorTopology, machine: Machine, threads: int, near: bool
) -> _Ways:
    layout = call.attributes["layout"]
    weight, element = _PRODUCTS[layout]
    chunks, tasks = divide_product(one, threads)
    supply = machine.l3_gbytes * threads if near else machine.shared_gbytes
    read_us = weight * one.k * one.n / supply * 1e-3  # once
    rows_us = element * one.m * one.k / machine.line_gbytes * 1e-3  # all
    compute = one.flops / (machine.gflops * _share(layout, machine)) * 1e-3 / threads
    readers = min(chunks, threads)
    few = min(readers, max(1.0, threads * chunks / tasks))
    linked = compute + read_us * readers + rows_us / chunks
    apart = compute + read_us * few + rows_us * _farther(machine)
    rounds = max(tasks / threads, 1.0)
    return _Ways(
        linked + _linked_us(machine, rounds),
        apart * (1 + _UNEVEN / rounds) + _barrier_us(machine, threads),
        readers,
        read_us * readers,
    )


def _farther(machine: Machine) -> float:
    """How many times as long rows take that all threads read, for those of other groups."""
    if machine.groups < 2 or machine.far_line_gbytes <= 0:
        return 1.0
    far = 1.0 - 1.0 / machine.groups
    return 1.0 - far + far * machine.line_gbytes / machine.far_line_gbytes


def _rows(call: Call, one: OperatorTopology, machine: Machine, threads: int, near: bool) -> _Ways:
    """Calls whose tasks are the same with and without a barrier."""
    moved = 4 * one.moved / (machine.l2_gbytes * threads) * 1e-3
    us = max(one.flops / machine.gflops * 1e-3 / threads, moved)
    tail = us * _UNEVEN
    return _Ways(us + _linked_us(machine, 1.0), us + tail + _barrier_us(machine, threads))


def divide_product(one: OperatorTopology, threads: int) -> tuple[int, int]:
    """Return the chunks of rows, and the tasks, that a team divides a product into.

    The rule is ``divide_work`` of ``runtime/gemm.h``, with the policy's schedules.
    """
    rows_per_task = next(s.mc for s in GEMM_SCHEDULES if one.m <= s.max_rows)
    panels, width, wanted = ceil(one.n / PANEL), _WIDEST, 8 * threads
    chunks = ceil(one.m / rows_per_task)
    while chunks * ceil(panels / width) < wanted and one.m // (2 * chunks) >= 32:
        chunks *= 2
    while width > 1 and chunks * ceil(panels / width) < (3 if width > 2 else 1) * threads:
        width -= 1
    columns = ceil(panels / width)
    together = 1 if one.m >= 64 else min(max(columns // 4, 1), 2 if one.m >= 32 else 4)
    if one.m >= 64 and one.k * width * PANEL > _NEAR_NUMBERS:
        together = 8
    while together > 1 and chunks * ceil(columns / together) < wanted:
        together //= 2
    return chunks, chunks * ceil(columns / min(columns, together))


def _share(layout: str, machine: Machine) -> float:
    """Speed of a product as a multiple of the peak in fp32."""
    shares = packaged_coefficients().on(machine).shares
    named = "FusedGemm" if layout == "panels" else f"FusedGemm {layout}"
    return shares.get(named, shares["FusedGemm"])


def _linked_us(machine: Machine, rounds: float) -> float:
    return machine.handover_us * _LINES_PER_TASK * rounds


def _barrier_us(machine: Machine, threads: int) -> float:
    return machine.handover_us * (1 + threads / _THREADS_PER_LINE)
