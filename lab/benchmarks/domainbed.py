"""Benchmark `domainbed`: `holdfast compare` against a loop in the manner of DomainBed, end to end in a process each.

The reference trains the same ResNet on the same image files: one endless loader with worker processes per domain, which
decodes every image again and applies DomainBed's training transforms to it with Pillow, fp32, the loss read in every
step, and an evaluation of both splits of all domains at every check, by loaders whose workers stay alive. `compare`
trains with `augment=domainbed`, the same transforms. Evaluation decodes and resizes only, on both sides.
`python -m lab.benchmarks.domainbed` runs the reference; its plan is read from stdin as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

from holdfast.data.augment import crop_boxes
from holdfast.nn.backbones.resnet import ResNet
from holdfast.nn.backbones.small import IMAGENET
from lab.benchmarks.harness import Result, report_time

HELD_OUT = 0.2  # share of every domain that validates
LR = 5e-5
JITTER = 0.3  # largest change of brightness, contrast, saturation and hue
GREY = 0.1  # share of images that become grey


@dataclass(frozen=True)
class Plan:
    """Size of the work, equal for both."""

    folder: str
    device: str
    depth: int = 50
    stem: str = "large"
    pixels: int = 224
    classes: int = 7
    domains: int = 4
    images: int = 1000  # per domain
    batch: int = 32  # per domain
    steps: int = 300
    checks: int = 4
    workers: int = 8  # of every loader
    repeats: int = 3


GPU = Plan("", "cuda")
CPU = Plan("", "cpu", depth=18, stem="small", pixels=32, classes=3, images=90, batch=8, steps=12, checks=2, workers=1)


def run(device: torch.device) -> list[Result]:
    """Measure one target domain with an empty image cache and with decoded images, then all targets."""
    with tempfile.TemporaryDirectory() as folder:
        size = GPU if device.type == "cuda" else CPU
        plan = Plan(**{**asdict(size), "folder": folder, "device": device.type})
        write_images(plan)
        return measure(plan)


def measure(plan: Plan) -> list[Result]:
    """Return how many times longer the reference takes; targets hold on a GPU."""
    gpu = plan.device == "cuda"
    names = [f"d{i}" for i in range(plan.domains)]
    cases = ("one target", "one target, images decoded before", f"{plan.domains} targets")
    times: dict[str, list[float]] = {case: [] for case in ("reference", *cases)}

    for i in range(plan.repeats):
        work = [("reference", [sys.executable, "-m", "lab.benchmarks.domainbed"], json.dumps(asdict(plan)))]
        for number, (case, targets) in enumerate(zip(cases, (names[-1:], names[-1:], names), strict=True)):
            work.append((case, _command(plan, targets, f"{number}-{i}"), ""))
        for case, command, text in work:
            times[case].append(_seconds(command, text, Path(plan.folder) / f"cache{i}"))
            report_time(f"run {i + 1} of {plan.repeats}, {case}", times[case][-1])
    one, *compared = (median(values) for values in times.values())
    ratios = (one / compared[0], one / compared[1], plan.domains * one / compared[2])
    return [
        Result(f"reference/compare, {case}", ratio, bar=bar if gpu else None, at_least=True)
        for case, ratio, bar in zip(cases, ratios, (3.0, None, 6.0), strict=True)
    ]


def write_images(plan: Plan) -> None:
    """Write JPEG files of random patterns, in folders by domain and class."""
    rng, side = np.random.default_rng(0), plan.pixels + 3
    for domain in range(plan.domains):
        for i in range(plan.images):
            path = Path(plan.folder) / "images" / f"d{domain}" / f"c{i % plan.classes}" / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            pattern = rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pattern).resize((side, side), Image.Resampling.BILINEAR).save(path, quality=90)


def _command(plan: Plan, targets: Sequence[str], name: str) -> list[str]:
    """Return the command that trains on all other domains and tests on each target."""
    settings = {
        "encoder.stem": plan.stem, "encoder.size": plan.pixels,
        "plan.targets": json.dumps(list(targets)), "every": plan.steps // plan.checks, "average": "none",
        "encoder.statistics": "batch", "schedule": "constant", "warmup": 0, "optimizer": "adam", "weight_decay": 0,
        "augment": "domainbed",
    }  # fmt: skip
    line = (
        f"-m holdfast compare --methods erm --seeds 1 --encoder resnet{plan.depth} --tune full --steps {plan.steps} "
        f"--batch {plan.batch} --lr {LR} --device {plan.device} --no-model --no-baselines --no-combinations"
    )
    changes = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return [sys.executable, *line.split(), f"{plan.folder}/images", "--out", f"{plan.folder}/{name}", *changes]


def _seconds(command: list[str], text: str, cache: Path) -> float:
    """Return the duration of a process, start-up included."""
    path = os.pathsep.join(dict.fromkeys(folder for folder in sys.path if folder))
    variables = {"HOLDFAST_CACHE": str(cache), "PYTHONPATH": path}
    start = time.perf_counter()
    done = subprocess.run(command, input=text, text=True, capture_output=True, env={**os.environ, **variables})
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} failed: {done.stderr[-400:]}")
    return time.perf_counter() - start


class _Files(Dataset[tuple[Tensor, int]]):
    """Image files that are decoded, resized or augmented, and normalised at every access."""

    def __init__(self, files: Sequence[tuple[Path, int]], pixels: int, *, augment: bool) -> None:
        self.files, self.pixels, self.augment = list(files), pixels, augment

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.files[index]
        with Image.open(path) as file:
            image = file.convert("RGB")
        if self.augment:
            image = random_view(image, self.pixels)
        else:
            image = image.resize((self.pixels, self.pixels), Image.Resampling.BILINEAR)
        x = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in IMAGENET)
        return (x - mean) / std, label


def random_view(image: Image.Image, pixels: int) -> Image.Image:
    """Crop, flip, jitter and convert to grey as DomainBed does, with random numbers of torch.

    A crop has 70 to 100 % of the area; the four colour changes have a random order.
    """
    (width, height), draw = image.size, torch.empty(()).uniform_
    top, left, high, wide = crop_boxes(1, height / width, torch.default_generator)[0].tolist()
    w, h = max(1, round(wide * width)), max(1, round(high * height))
    x, y = min(round(left * width), width - w), min(round(top * height), height - h)
    image = image.crop((x, y, x + w, y + h)).resize((pixels, pixels), Image.Resampling.BILINEAR)
    if draw(0, 1).item() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    for i in torch.randperm(len(enhancers) + 1).tolist():
        change = draw(-JITTER, JITTER).item()
        image = enhancers[i](image).enhance(1 + change) if i < len(enhancers) else turn_hue(image, change)
    return image.convert("L").convert("RGB") if draw(0, 1).item() < GREY else image


def turn_hue(image: Image.Image, shift: float) -> Image.Image:
    """Rotate the hue by `shift`, a fraction of a full circle."""
    hue, saturation, value = image.convert("HSV").split()
    turned = np.asarray(hue) + np.uint8(round(shift * 255) % 256)  # uint8 wraps around, as the circle does
    return Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert("RGB")


def reference(plan: Plan) -> list[float]:
    """Train on all domains except the last; return the accuracy of every split at the last check."""
    device = torch.device(plan.device)
    torch.manual_seed(0)
    network = _Network(plan).to(device).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=LR)
    splits = _splits(plan)
    trained = [files for _, (files, _) in zip(range(plan.domains - 1), splits, strict=False)]
    loaders = [_endless(_Files(files, plan.pixels, augment=True), plan) for files in trained]
    scored = [_scored(files, plan) for pair in splits for files in pair]
    accuracies: list[float] = []
    for step in range(plan.steps):
        batches = [next(loader) for loader in loaders]
        x, y = torch.cat([x for x, _ in batches]).to(device), torch.cat([y for _, y in batches]).to(device)
        loss = F.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        if (step + 1) % (plan.steps // plan.checks) == 0:
            accuracies = [_accuracy(network, loader, device) for loader in scored]
    return accuracies


class _Network(nn.Module):
    """ResNet with a linear head, for images that are normalised already."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.features = ResNet(depth=plan.depth, stem=plan.stem, size=plan.pixels)
        self.features.normalise = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
        self.head = nn.Linear(self.features.width, plan.classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def _splits(plan: Plan) -> list[tuple[list[tuple[Path, int]], list[tuple[Path, int]]]]:
    """Return training and validation files per domain."""
    splits = []
    for domain in range(plan.domains):
        folder = Path(plan.folder) / "images" / f"d{domain}"
        files = [(path, int(path.parent.name[1:])) for path in sorted(folder.glob("*/*.jpg"))]
        order = np.random.default_rng(domain).permutation(len(files))
        held = round(HELD_OUT * len(files))
        splits.append(([files[i] for i in order[held:]], [files[i] for i in order[:held]]))
    return splits


def _endless(files: _Files, plan: Plan) -> Iterator[Any]:
    sampler = RandomSampler(files, replacement=True, num_samples=plan.steps * plan.batch)
    yield from DataLoader(files, plan.batch, sampler=sampler, num_workers=plan.workers, drop_last=True)


def _scored(files: list[tuple[Path, int]], plan: Plan) -> DataLoader[Any]:
    """Return a loader for evaluation, whose workers stay alive between checks."""
    dataset = _Files(files, plan.pixels, augment=False)
    return DataLoader(dataset, 64, num_workers=plan.workers, persistent_workers=plan.workers > 0)


@torch.no_grad()
def _accuracy(network: nn.Module, loader: DataLoader[Any], device: torch.device) -> float:
    network.eval()
    right, count = 0, 0
    for x, y in loader:
        right += int((network(x.to(device)).argmax(1) == y.to(device)).sum().item())
        count += len(y)
    network.train()
    return right / max(1, count)


if __name__ == "__main__":
    reference(Plan(**json.loads(sys.stdin.read())))
