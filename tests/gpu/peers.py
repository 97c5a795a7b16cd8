"""Whole models on the device, beside torch: ``python -m tests.gpu.peers [NAME…] [--batch N]``.

Inputs and results lie on the device; both sides replay CUDA graphs back to back.  torch runs the
same architecture with weights of its own, in fp16 and channels-last images, as eager, compiled
and max-autotuned code (``--ways``), each in a graph; its best counts.  ``--parts`` lists the
launches that take most of a model's time, each alone, ``--tiles`` the time of matmuls and
convolutions with each tile.  ``--warm`` only compiles torch's side.
Operations a second are those of the products that ours computes, as the cost model counts them.
Of ``NAME-fp16`` inputs and results are fp16, as torch's are; those of ``NAME`` are float32.
``NAME-qdq`` is the model in 8-bit integers, ``NAME-pruned`` the one of whose matrices two of
four numbers are zero (``models.prune``), both beside torch's dense one in fp16.
``--write`` puts the table between its marker lines of a file.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from models.score import replace_table
from tests.gpu.device import Device
from tests.gpu.whole import HALF, Plan, Whole, planned

NAMES = ("minilm", "bert-base", "resnet50", "mobilenetv2", "vit-base", "gpt2", "whisper-tiny",
         "convnext-tiny", "efficientnet-b0")  # fmt: skip
WAYS = ("eager", "default", "max-autotune-no-cudagraphs")
HEADS = ("model", "ours, µs", "TFLOP/s", "max error", "1 − cosine", "torch, µs", "over torch")
_SEQUENCE, _SIDE, _WORDS = 128, 224, 30522
_CHANGED = ("-qdq", "-pruned", "-rank96", "-rank128")
"""Ends of the names of models in 8-bit integers, of pruned ones and of those of low rank."""
_BANDS, _FRAMES = 80, 3000
"""Whisper's input."""
_MOST = 24
"""Launches that ``--parts`` lists."""


def _layer(hidden: int, heads: int, early: bool = False, causal: bool = False) -> Any:
    """A transformer's layer, with norms in front or behind; torch chooses its attention (SDPA)."""
    from torch import nn

    class Layer(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
            self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
            self.first, self.second = nn.LayerNorm(hidden), nn.LayerNorm(hidden)

        def attend(self, x: Any) -> Any:
            split = self.qkv(x).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
            attend = nn.functional.scaled_dot_product_attention
            return self.out(attend(*split.unbind(0), is_causal=causal).transpose(1, 2).flatten(2))

        def forward(self, x: Any) -> Any:
            gelu = nn.functional.gelu
            if early:
                x = x + self.attend(self.first(x))
                return x + self.down(gelu(self.up(self.second(x)), approximate=how))
            x = self.first(x + self.attend(x))
            return self.second(x + self.down(gelu(self.up(x))))

    how = "tanh" if causal else "none"
    return Layer()


def _encoder(hidden: int, layers: int, heads: int) -> Any:
    """A BERT encoder without a mask."""
    from torch import nn

    class Encoder(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(_WORDS, hidden), nn.Embedding(512, hidden)
            self.norm = nn.LayerNorm(hidden)
            self.layers = nn.Sequential(*(_layer(hidden, heads) for _ in range(layers)))

        def forward(self, ids: Any) -> Any:
            places = self.places.weight[: ids.shape[1]]
            return self.layers(self.norm(self.words(ids) + places))

    return Encoder()


def _decoder(hidden: int, layers: int, heads: int, words: int) -> Any:
    """GPT-2, whose attention is causal, with the scores of all words."""
    from torch import nn

    class Decoder(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(words, hidden), nn.Embedding(1024, hidden)
            each = (_layer(hidden, heads, early=True, causal=True) for _ in range(layers))
            self.layers, self.norm = nn.Sequential(*each), nn.LayerNorm(hidden)
            self.head = nn.Linear(hidden, words, bias=False)

        def forward(self, ids: Any) -> Any:
            x = self.words(ids) + self.places.weight[: ids.shape[1]]
            return self.head(self.norm(self.layers(x)))

    return Decoder()


def _listener(hidden: int, layers: int, heads: int) -> Any:
    """Whisper's encoder."""
    from torch import nn

    class Listener(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv1d(_BANDS, hidden, 3, padding=1)
            self.second = nn.Conv1d(hidden, hidden, 3, stride=2, padding=1)
            self.places = nn.Embedding(_FRAMES // 2, hidden)
            each = (_layer(hidden, heads, early=True) for _ in range(layers))
            self.layers, self.norm = nn.Sequential(*each), nn.LayerNorm(hidden)

        def forward(self, sound: Any) -> Any:
            gelu = nn.functional.gelu
            x = gelu(self.second(gelu(self.first(sound)))).transpose(1, 2)
            return self.norm(self.layers(x + self.places.weight))

    return Listener()


def _image_model(name: str) -> Any:
    import torchvision

    return getattr(torchvision.models, name)()


MODELS: dict[str, Callable[[], Any]] = {
    "minilm": lambda: _encoder(384, 6, 12),
    "bert-base": lambda: _encoder(768, 12, 12),
    "resnet50": lambda: _image_model("resnet50"),
    "mobilenetv2": lambda: _image_model("mobilenet_v2"),
    "vit-base": lambda: _image_model("vit_b_16"),
    "gpt2": lambda: _decoder(768, 12, 12, 50257),
    "whisper-tiny": lambda: _listener(384, 4, 6),
    "convnext-tiny": lambda: _image_model("convnext_tiny"),
    "efficientnet-b0": lambda: _image_model("efficientnet_b0"),
}
"""torch's side of each model."""


def _torch_work(torch: Any, name: str, batch: int) -> Callable[[], Any]:
    for end in (HALF, *_CHANGED):
        name = name.removesuffix(end)
    model = MODELS[name]().eval().half().cuda()
    if name == "whisper-tiny":
        sound = torch.rand(batch, _BANDS, _FRAMES, device="cuda").half()
        return lambda: model(sound)
    if name not in ("minilm", "bert-base", "gpt2"):
        last = torch.channels_last
        model = model.to(memory_format=last)
        image = torch.rand(batch, 3, _SIDE, _SIDE, device="cuda").half().to(memory_format=last)
        return lambda: model(image)
    ids = torch.randint(0, _WORDS, (batch, _SEQUENCE), device="cuda")
    return lambda: model(ids)


def torch_times(
    name: str, batch: int, ways: Sequence[str] = WAYS, timed: bool = True
) -> Iterator[float]:
    """Yield the time of each way to run a model in torch in µs, 0 for one that failed."""
    import torch

    torch.backends.cudnn.benchmark = True
    with torch.inference_mode():
        work = _torch_work(torch, name, batch)
        for way in ways:
            torch.compiler.reset()
            run = work if way == "eager" else torch.compile(work, mode=way)
            try:
                for _ in range(3):
                    run()
                torch.cuda.synchronize()
                yield _graphed(torch, run) if timed else 0.0
            except Exception as error:  # other ways may work
                sys.stderr.write(f"{name} {way}: {type(error).__name__}: {str(error)[:300]}\n")
                yield 0.0


def _graphed(torch: Any, run: Callable[[], Any], replays: int = 20) -> float:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in "be")
    times = []
    for _ in range(10):
        begin.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(1000 * begin.elapsed_time(end) / replays)
    return median(times)


def _parts(whole: Whole) -> Iterator[str]:
    found = whole.alone()
    total = sum(time * count for time, _, count in found)
    yield f"  {total:.0f} µs, were each launch alone"
    for time, run, count in found[:_MOST]:
        yield (f"  {time * count:7.1f} µs = {count:2} × {time:6.1f}  {run.blocks:6} × "
               f"{run.threads:3}  {run.symbol[7:]:52} {run.what}")  # fmt: skip


def _tiles(whole: Whole) -> Iterator[str]:
    for run, count, times in whole.tiles():
        best, own = min(times.values()), times[run.variant.tile]
        each = ", ".join(f"{tile} {time:.1f}" for tile, time in times.items())
        yield (f"  {count:2} × {own - best:4.1f} µs  {run.symbol[7:]:52} "
               f"{run.what}\n       {each}")  # fmt: skip


def _table(
    rows: list[tuple[str, ...]],
    device: Device,
    precision: str,
    batch: int,
    version: str,
    ways: Sequence[str],
) -> str:
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0"]
    driver = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60)
    lines = [HEADS, ("---", *("---:" for _ in HEADS[1:])), *rows]
    note = (f"{device.name}, driver {driver.stdout.strip()}, torch {version}, batch {batch}, "
            f"{precision}, tensors on the device; torch: {', '.join(ways)}; "
            f"{datetime.now(UTC):%Y-%m-%d}.")  # fmt: skip
    return "\n".join([*("| " + " | ".join(row) + " |" for row in lines), "", note, ""])


def _row(
    device: Device, name: str, plan: Plan, theirs: list[float], parts: bool, tiles: bool
) -> tuple[str, ...]:
    whole = Whole(device, plan)
    try:
        (error, cosine), own = whole.error(), whole.microseconds()
        for line in (*(_parts(whole) if parts else ()), *(_tiles(whole) if tiles else ())):
            sys.stdout.write(f"{line}\n")
    finally:
        whole.close()
    best = min((t for t in theirs if t), default=0.0)
    each = ", ".join(f"{t:.0f}" if t else "–" for t in theirs) or "–"
    rate, far = f"{plan.flops / own / 1e6:.0f}", f"{max(0.0, 1 - cosine):.1e}"
    over = f"{best / own:.2f}" if best else "–"
    return name, f"{own:.0f}", rate, f"{error:.1e}", far, each, over


def main() -> int:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--precision", default="fp16", help="what ours computes in; torch in fp16")
    parser.add_argument("--ways", default=",".join(WAYS), help="how torch runs")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--alone", action="store_true", help="leave torch out")
    parser.add_argument("--write", type=Path, metavar="FILE.md")
    asked = parser.parse_args()
    names, ways = asked.names or list(NAMES), asked.ways.split(",")
    if asked.warm:
        for name in names:
            list(torch_times(name, asked.batch, ways, timed=False))
        return 0
    version, rows = "", list[tuple[str, ...]]()
    if not asked.alone:
        import torch

        version = torch.__version__
        torch.zeros(1, device="cuda")
    device = Device()
    for name in names:
        theirs = [] if asked.alone else list(torch_times(name, asked.batch, ways))
        with tempfile.TemporaryDirectory() as folder:
            plan = planned(name, asked.precision, Path(folder), asked.batch)
            rows.append(_row(device, name, plan, theirs, asked.parts, asked.tiles))
        sys.stdout.write(" | ".join(rows[-1]) + "\n")
        sys.stdout.flush()
    if asked.write:
        text = _table(rows, device, asked.precision, asked.batch, version, ways)
        replace_table(asked.write, asked.precision, text, "tests.gpu.peers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
