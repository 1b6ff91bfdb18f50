"""The learning rate of every optimizer of every method follows the schedule, however many updates a step makes."""

from functools import partial

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from holdfast import catalog
from holdfast.methods.optim import OptimizerSettings
from tests.contract.scenario import build_method, full_batch, started

STEPS, RATES = 20, {"head": 10.0, "critic": 3.0, "memory": 7.0, "neck": 0.5}
BUSY = {  # several updates per step, or a change of the loss during the run
    "dann": {"critic_steps": 4}, "cdann": {"critic_steps": 4}, "fishr": {"anneal": 0.5},
    "mil": {"critic": "adversarial", "critic_steps": 3, "inner_steps": 2, "iterations": 3},
    "irm": {"anneal": 0.5}, "vrex": {"anneal": 0.5},
    "ib-erm": {"anneal": 0.5}, "ib-irm": {"anneal": 0.5},
}  # fmt: skip


METHODS = [name for name in catalog.buildable_names("methods", "classify") if not full_batch(name)]
CASES = [(name, "linear", 2) for name in METHODS]
CASES += [("erm", schedule, 1) for schedule in ("constant", "linear", "cosine", "halving")]


@pytest.mark.parametrize(("name", "schedule", "accumulate"), CASES)
def test_rates_follow_the_schedule(name, schedule, accumulate, benches):
    bench = benches["gin-subgraph" if catalog.incompatibility(name, "mlp") else "mlp"]
    warmup = STEPS // accumulate // 10
    settings = OptimizerSettings(
        lr=1e-3, schedule=schedule, warmup=warmup, steps=STEPS, accumulate=accumulate, rates=RATES
    )
    model = partial(bench.model, (*catalog.unwrap("methods", name)[-1][1].necks, "none")[0])
    method = started(build_method(name, model, options=BUSY.get(name), **vars(settings)))
    updates: list[tuple[int, torch.optim.Optimizer, list[float]]] = []
    count = 0

    def note(optimizer, args, kwargs):
        updates.append((count, optimizer, [group["lr"] for group in optimizer.param_groups]))

    handle = register_optimizer_step_pre_hook(note)
    batches = bench.batches()
    try:
        for phase in method.phases:
            method.begin_phase(phase)
            for optimizer in method.optimizers():
                optimizer.restart()
            method.train()
            updates.clear()
            for count in range(STEPS):  # noqa: B007 (read by `note`)
                method.step(next(batches))
            known = {id(o.optimizer): o for o in method.optimizers()}
            assert updates
            assert updates[-1][0] == STEPS - 1
            for step, raw, rates in updates:
                optimizer = known[id(raw)]
                factor = optimizer.settings.factor(step // accumulate)
                expected = [optimizer.settings.lr * factor * rate for rate in optimizer.rates]
                assert rates == pytest.approx(expected), (step, rates, expected)
            last = settings.factor(STEPS // accumulate - 1)
            final = {"constant": 1.0, "linear": 1 / (STEPS // accumulate - warmup), "halving": 0.5**7}
            assert last == pytest.approx(final.get(schedule, last))
    finally:
        handle.remove()
