"""Define networks that transformers lacks, as torch modules for the export script.

Detector   anchor-free, after YOLOv8n: 3 scales, boxes as distributions, decoded in the graph
UNet       4 levels, transposed convolutions, skips padded to fit any size
Tagger     bidirectional LSTM and GRU over filter-bank features, a label per frame
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

__all__ = ["Detector", "Tagger", "UNet"]

Tensor = Any


class ConvUnit(nn.Sequential):  # type: ignore[misc]
    """Convolution, batch norm, SiLU; the size is divided by ``stride``."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm2d(outputs),
            nn.SiLU(),
        )


class Residual(nn.Module):  # type: ignore[misc]
    """Two 3×3 units, with a skip where ``add``."""

    def __init__(self, width: int, add: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(ConvUnit(width, width, 3), ConvUnit(width, width, 3))
        self.add = add

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.add else self.body(x)


class CrossStagePartial(nn.Module):  # type: ignore[misc]
    """Half of the channels pass, half run through residuals; all stages are concatenated."""

    def __init__(self, inputs: int, outputs: int, depth: int = 1, add: bool = False) -> None:
        super().__init__()
        half = outputs // 2
        self.enter = ConvUnit(inputs, outputs)
        self.stages = nn.ModuleList(Residual(half, add) for _ in range(depth))
        self.leave = ConvUnit((2 + depth) * half, outputs)

    def forward(self, x: Tensor) -> Tensor:
        kept = list(self.enter(x).chunk(2, 1))
        for stage in self.stages:
            kept.append(stage(kept[-1]))
        return self.leave(torch.cat(kept, 1))


class PyramidPool(nn.Module):  # type: ignore[misc]
    """Three chained 5×5 max pools, concatenated."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter, self.leave = ConvUnit(width, width // 2), ConvUnit(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.enter(x)]
        for _ in range(3):
            kept.append(functional.max_pool2d(kept[-1], 5, 1, 2))
        return self.leave(torch.cat(kept, 1))


class Head(nn.Module):  # type: ignore[misc]
    """Box distances as distributions over ``BINS`` values, and class scores, at three scales."""

    BINS = 16
    STRIDES = (8, 16, 32)

    def __init__(self, widths: Sequence[int], classes: int) -> None:
        super().__init__()
        self.boxes = nn.ModuleList(self._branch(w, 4 * self.BINS, 4 * self.BINS) for w in widths)
        self.scores = nn.ModuleList(self._branch(w, classes, classes) for w in widths)
        self.classes = classes

    @staticmethod
    def _branch(width: int, middle: int, outputs: int) -> Tensor:
        units = (ConvUnit(width, middle, 3), ConvUnit(middle, middle, 3))
        return nn.Sequential(*units, nn.Conv2d(middle, outputs, 1))

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        found = [
            torch.cat((box(x), score(x)), 1).flatten(2)
            for x, box, score in zip(maps, self.boxes, self.scores, strict=True)
        ]
        boxes, scores = torch.cat(found, 2).split((4 * self.BINS, self.classes), 1)
        points, strides = self._points(maps)
        bins = boxes.reshape(boxes.shape[0], 4, self.BINS, -1).softmax(2)
        weights = torch.arange(self.BINS, dtype=bins.dtype).reshape(1, 1, -1, 1)
        near, far = (bins * weights).sum(2).chunk(2, 1)
        low, high = points - near, points + far
        decoded = torch.cat(((low + high) / 2, high - low), 1) * strides
        return decoded, scores.sigmoid()

    def _points(self, maps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return cell centres [2, anchors] in cells, and the stride of each cell [1, anchors]."""
        points, strides = [], []
        for x, stride in zip(maps, self.STRIDES, strict=True):
            height, width = x.shape[2:]
            rows = torch.arange(height, dtype=x.dtype) + 0.5
            columns = torch.arange(width, dtype=x.dtype) + 0.5
            grid = torch.meshgrid(rows, columns, indexing="ij")
            points.append(torch.stack((grid[1], grid[0])).flatten(1))
            strides.append(torch.full((1, height * width), stride, dtype=x.dtype))
        return torch.cat(points, 1), torch.cat(strides, 1)


class Detector(nn.Module):  # type: ignore[misc]
    """images [batch, 3, 32h, 32w] → boxes [batch, 4, anchors], scores [batch, classes, anchors].

    A box is its centre and its size in pixels; anchors are the cells of all three scales.
    """

    def __init__(self, widths: Sequence[int] = (16, 32, 64, 128, 256), classes: int = 80) -> None:
        super().__init__()
        a, b, c, d, e = widths
        self.low = nn.Sequential(
            ConvUnit(3, a, 3, 2),
            ConvUnit(a, b, 3, 2),
            CrossStagePartial(b, b, 1, True),
            ConvUnit(b, c, 3, 2),
            CrossStagePartial(c, c, 2, True),
        )
        self.middle = nn.Sequential(ConvUnit(c, d, 3, 2), CrossStagePartial(d, d, 2, True))
        self.high = nn.Sequential(
            ConvUnit(d, e, 3, 2), CrossStagePartial(e, e, 1, True), PyramidPool(e)
        )
        self.rise_middle, self.rise_low = CrossStagePartial(d + e, d), CrossStagePartial(c + d, c)
        self.to_middle, self.sink_middle = ConvUnit(c, c, 3, 2), CrossStagePartial(c + d, d)
        self.to_high, self.sink_high = ConvUnit(d, d, 3, 2), CrossStagePartial(d + e, e)
        self.head = Head((c, d, e), classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        low = self.low(images)
        middle = self.middle(low)
        high = self.high(middle)
        middle = self.rise_middle(torch.cat((self._double(high), middle), 1))
        low = self.rise_low(torch.cat((self._double(middle), low), 1))
        middle = self.sink_middle(torch.cat((self.to_middle(low), middle), 1))
        high = self.sink_high(torch.cat((self.to_high(middle), high), 1))
        boxes, scores = self.head((low, middle, high))
        return boxes, scores

    @staticmethod
    def _double(x: Tensor) -> Tensor:
        return functional.interpolate(x, scale_factor=2.0, mode="nearest")


class UNet(nn.Module):  # type: ignore[misc]
    """images [batch, 3, height, width] → class scores [batch, classes, height, width]."""

    def __init__(self, width: int = 32, classes: int = 4, levels: int = 4) -> None:
        super().__init__()
        widths = [width << level for level in range(levels + 1)]
        self.enter = self._pair(3, width)
        self.down = nn.ModuleList(self._pair(w, 2 * w) for w in widths[:-1])
        self.rise = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in widths[-2::-1])
        self.up = nn.ModuleList(self._pair(2 * w, w) for w in widths[-2::-1])
        self.leave = nn.Conv2d(width, classes, 1)

    @staticmethod
    def _pair(inputs: int, outputs: int) -> Tensor:
        steps = []
        for count in (inputs, outputs):
            steps += [nn.Conv2d(count, outputs, 3, padding=1, bias=False)]
            steps += [nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        return nn.Sequential(*steps)

    def forward(self, images: Tensor) -> Tensor:
        kept = [self.enter(images)]
        for down in self.down:
            kept.append(down(functional.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for rise, up in zip(self.rise, self.up, strict=True):
            x, skip = rise(x), kept.pop()
            rows, columns = skip.shape[2] - x.shape[2], skip.shape[3] - x.shape[3]
            sides = (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)
            x = up(torch.cat((skip, functional.pad(x, sides)), 1))
        return self.leave(x)


class Tagger(nn.Module):  # type: ignore[misc]
    """features [batch, frames, 80] → log-probabilities of labels [batch, frames, labels]."""

    def __init__(self, bands: int = 80, width: int = 256, labels: int = 48) -> None:
        super().__init__()
        self.enter = nn.Linear(bands, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True, bidirectional=True)
        self.norm = nn.LayerNorm(2 * width)
        self.gru = nn.GRU(2 * width, width, 1, batch_first=True)
        self.leave = nn.Linear(width, labels)

    def forward(self, features: Tensor) -> Tensor:
        x = functional.relu(self.enter(features))
        x = self.gru(self.norm(self.lstm(x)[0]))[0]
        return self.leave(x).log_softmax(-1)
