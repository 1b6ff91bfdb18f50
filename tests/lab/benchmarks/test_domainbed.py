"""The reference loop of `bench domainbed`, and the ratios that are computed from it."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from holdfast.data.augment import adjust_hue
from lab.benchmarks import domainbed, scaling
from lab.benchmarks.domainbed import CPU, GPU, Plan

SMALL = {"pixels": 16, "images": 12, "batch": 2, "steps": 2, "checks": 1, "workers": 0, "repeats": 2}


def _plan(folder: Path, **changes) -> Plan:
    plan = Plan(**{**asdict(CPU), **SMALL, "folder": str(folder), **changes})
    domainbed.write_images(plan)
    return plan


def test_the_reference_trains_and_scores_both_splits_of_all_domains(tmp_path: Path) -> None:
    accuracies = domainbed.reference(_plan(tmp_path))
    assert len(accuracies) == 2 * CPU.domains
    assert all(0 <= value <= 1 for value in accuracies)


def test_random_views_have_the_published_distribution() -> None:
    """Crops, flips, jitter and grey of one image whose red and green encode the position."""
    torch.manual_seed(0)
    ramp = np.linspace(60, 180, 64).astype(np.uint8)
    pixels = np.stack([np.tile(ramp, (64, 1)), np.tile(ramp, (64, 1)).T, np.full((64, 64), 20, np.uint8)], 2)
    views = [np.asarray(domainbed.random_view(Image.fromarray(pixels), 32), float) for _ in range(400)]
    grey = np.mean([np.ptp(view, axis=2).max() == 0 for view in views])
    assert 0.05 < grey < 0.16
    light = np.array([view.mean() for view in views]) / pixels.mean()
    assert light.min() < 0.8
    assert light.max() > 1.2
    wide = np.array([view.sum(2)[:, 0].mean() - view.sum(2)[:, -1].mean() for view in views])
    assert 0.4 < np.mean(wide > 0) < 0.6  # mirrored: bright left


def test_a_rotation_of_the_hue_agrees_with_that_of_tensors() -> None:
    colours = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    turned = np.asarray(domainbed.turn_hue(Image.fromarray(colours), 0.2), float) / 255
    x = torch.from_numpy(colours).permute(2, 0, 1)[None].float() / 255
    expected = adjust_hue(x, torch.tensor([0.2]))[0].permute(1, 2, 0).numpy()
    assert np.abs(turned - expected).max() < 0.05  # HSV of Pillow has 8 bits
    same = np.asarray(domainbed.turn_hue(Image.fromarray(colours), 0.0), int)
    assert np.abs(same - colours.astype(int)).max() <= 6


def test_ratios_compare_the_same_number_of_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []

    def seconds(command, text, cache) -> float:
        commands.append(command)
        if "compare" not in command:
            assert Plan(**domainbed.json.loads(text)).folder == str(tmp_path)
            return 12.0
        return 3.0

    monkeypatch.setattr(domainbed, "_seconds", seconds)
    results = domainbed.measure(_plan(tmp_path))
    assert [round(r.ratio, 3) for r in results] == [4.0, 4.0, 16.0]
    assert all(r.bar is None for r in results)
    one, every = commands[1], commands[3]
    assert 'plan.targets=["d3"]' in one
    assert "augment=domainbed" in one
    assert 'plan.targets=["d0", "d1", "d2", "d3"]' in every
    gpu = domainbed.measure(Plan(**{**asdict(GPU), "folder": str(tmp_path)}))
    assert [r.bar for r in gpu] == [3.0, None, 6.0]


@pytest.mark.slow
def test_compare_accepts_the_command(tmp_path: Path) -> None:
    plan = _plan(tmp_path)
    assert domainbed._seconds(domainbed._command(plan, ["d3"], "one"), "", tmp_path / "cache") > 0
    assert len(list((tmp_path / "one" / "records").glob("*.json"))) == 1


def test_exponents_of_known_costs() -> None:
    values = (1, 2, 4, 8)
    assert scaling.slope(values, [3 * v for v in values]) == pytest.approx(1)
    assert scaling.slope(values, [5.0] * 4) == pytest.approx(0)
    assert scaling.slope(values, [v**2 for v in values]) == pytest.approx(2)


def test_scaling_measures_every_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {
        "STEPS": (1, 2),
        "BATCHES": (8, 16),
        "DOMAINS": (2, 4),
        "SLOTS": (8, 16),
        "EXPERTS": (2, 4),
        "JOBS": (1, 2),
    }
    for name, value in {**small, "ROUNDS": 1, "QUERIES": 4}.items():
        monkeypatch.setattr(scaling, name, value)

    class Times:
        def __init__(self, engine, count) -> None:
            self.seconds = 3 + count / engine.jobs  # with the start of workers

    monkeypatch.setattr(scaling, "sweep", lambda engine, count, device: Times(engine, count))
    results = scaling.run(torch.device("cpu"))
    assert len(results) == 6
    assert results[-1].ratio == pytest.approx(1)
