"""Loss curves of short runs, stored as text, so that every change of a number is visible."""

from pathlib import Path

import pytest

from holdfast import catalog
from holdfast.data.synthetic import world
from holdfast.train.run import train, training_steps
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace

FOLDER = Path(__file__).parent / "curves"


@pytest.mark.parametrize(
    "method", [m for m in catalog.buildable_names("methods", "classify") if not catalog.incompatibility(m, "mlp")]
)
def test_curve(method, request):
    path = FOLDER / f"{method}.txt"
    if not path.exists() and not request.config.getoption("--golden-write"):
        pytest.skip("no golden curve; `make golden` writes one")
    dataset = world("vector", "rotation", domains=3, size=60, classes=2, seed=0)
    settings = {"encoder.hidden": [16], "lr": 1e-3, "schedule": "constant", "warmup": 0, "average": "none"}
    spec = make_spec(dataset, method=method, steps=40, every=5, batch=8, settings=settings)
    workspace = Workspace(dataset)
    record, _ = train(spec, workspace.episodes(spec)[0], workspace)
    lines = [
        " ".join(f"{k}={v:.6f}" for k, v in sorted(validation.items()) if isinstance(v, float))
        + " "
        + " ".join(f"{d}={v:.4f}" for d, v in sorted(validation["valid"].items()))
        for validation in record.stages[0]["history"]
    ]
    if request.config.getoption("--golden-write"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
    golden = path.read_text().splitlines()
    chosen_after = sum(validation["phase"] == "choose" for validation in record.stages[0]["history"])
    assert len(golden) == training_steps(spec) // spec.every + chosen_after
    for now, then in zip(lines, golden, strict=True):
        pairs = zip(now.split(), then.split(), strict=True)
        for (name, a), (expected, b) in ((x.split("="), y.split("=")) for x, y in pairs):
            assert name == expected
            assert float(a) == pytest.approx(float(b), rel=1e-3, abs=2e-3), (now, then)
