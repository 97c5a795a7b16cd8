"""Race a backend with eager and Inductor: ``python -m models.torch_compare``.

ResNet-50 and MiniLM-L6, built by transformers with weights from a seed, each on the thread counts
given.  Calls of all contestants take turns; the table has the median of each and of the ratios of
neighbours, and the largest difference from eager as a share of max|y|.  ``patched`` is eager with
``tracea_graph.torch.patch_module`` and ``attention_kernels``.  Needs torch, onnxscript and
transformers.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers

import tracea_graph.torch as tt
from tracea_graph.torch.backend import compile_graph

__all__ = ["main"]

Call = Callable[[], torch.Tensor]


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=", ".join(MODELS))
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--budget", type=float, default=180)
    given = parser.parse_args(argv)
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}")
    columns = f"{'ms':>8} {'of eager':>9} {'of inductor':>12} {'error':>8} {'first call s':>13}"
    print(f"{'model':10} {'threads':>7} {'':10} {columns}")
    for name in given.names or MODELS:
        for threads in given.threads:
            _race(name, threads, given.pairs, given.budget)


def resnet50() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """ResNet-50 and one image of 224 x 224."""
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000))
    return model, {"pixel_values": torch.randn(1, 3, 224, 224)}


def minilm() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """MiniLM-L6 and one sentence of 128 words."""
    config = transformers.BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    ids = torch.randint(1, 30000, (1, 128))
    return transformers.BertModel(config), {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
    }


MODELS = {"resnet50": resnet50, "minilm": minilm}


def _race(name: str, threads: int, pairs: int, budget: float) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    torch._dynamo.reset()
    model, feeds = MODELS[name]()
    model.eval()
    patched = copy.deepcopy(model)
    tt.patch_module(patched)
    options = {"budget": budget, "always": True}
    tracea = torch.compile(model, backend=compile_graph, options=options)

    def run(called: Any) -> Call:
        return lambda: called(**feeds)[0]

    def run_patched() -> torch.Tensor:
        with tt.attention_kernels():
            return patched(**feeds)[0]

    contestants = {
        "eager": run(model), "inductor": run(torch.compile(model)), "patched": run_patched,
        "tracea": run(tracea),
    }  # fmt: skip
    times: dict[str, list[float]] = {key: [] for key in contestants}
    with torch.no_grad():
        expected = contestants["eager"]()
        first, errors = {}, {}
        for key, call in contestants.items():
            start = time.perf_counter()
            difference = (call() - expected).abs().max() / expected.abs().max()
            first[key], errors[key] = time.perf_counter() - start, float(difference)
            call()
        for _ in range(pairs):
            for key, call in contestants.items():
                start = time.perf_counter()
                call()
                times[key].append(time.perf_counter() - start)
    for (op, reason), count in tt.fallback_counts().items():
        print(f"{op} fell back {count} times: {reason}")
    for key, own in times.items():
        of = [statistics.median(a / b for a, b in zip(times[other], own, strict=True))
              for other in ("eager", "inductor")]  # fmt: skip
        print(
            f"{name:10} {threads:7} {key:10} {statistics.median(own) * 1e3:8.2f} {of[0]:8.2f}x "
            f"{of[1]:11.2f}x {errors[key]:8.0e} {first[key]:13.1f}", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
