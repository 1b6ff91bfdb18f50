"""Worker of the distributed tests: a few steps of every method, and complete runs that are interrupted."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast import catalog
from holdfast.core import parallel
from holdfast.core.seeds import process_rng_streams, seeded
from holdfast.core.stopping import Interrupted, request_stop
from holdfast.data.splits import Part
from holdfast.data.synthetic import world
from holdfast.methods.base import Method, StageInfo
from holdfast.methods.mil import MIL
from holdfast.methods.optim import Optimizer
from holdfast.train.fit import train_step
from holdfast.train.resume import stop_at_signal
from holdfast.train.run import checkpoint_path, train_and_save
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace
from tests.contract.conftest import Bench, Body, make_bench
from tests.contract.scenario import batches_of, build_method

BATCH = 4  # examples per domain, of both processes together
STEPS = 3
PLAIN = {
    "mil": {"iterations": 2},
    "progressive(erm)": {"slots": 3},
    "ib-erm": {"weight": 0.1, "anneal": 0},
    "fishr": {"weight": 10.0, "anneal": 0},
}
RUN = {"encoder.hidden": [8], "encoder.dropout": 0.2, "accumulate": 2}
DATA = world("vector", "rotation", domains=3, size=30, classes=2, seed=0)


def encoder_of(method: str) -> str:
    layers = catalog.unwrap("methods", method)
    needed = [name for _, layer in layers for name in layer.encoders]
    return (needed or ["gin" if any(layer.takes == "graph" for _, layer in layers) else "mlp"])[0]


def bench_of(encoder: str) -> Bench:
    """Return a data set of four domains and networks without dropout, which would differ between processes."""
    is_vector = encoder == "mlp"
    options = {"hidden": [8] if is_vector else 8, "dropout": 0.0}
    return make_bench(Body("vector" if is_vector else "graph", encoder, options), size=24)


def method_of(bench: Bench, name: str) -> Method:
    """Return a method with SGD, because Adam would amplify rounding errors of small gradients."""
    needed = [neck for _, layer in catalog.unwrap("methods", name) for neck in layer.necks]
    settings = {"lr": 0.05, "optimizer": "sgd", "weight_decay": 0.0}
    method = build_method(name, partial(bench.model, (*needed, "none")[0]), options=PLAIN.get(name), **settings)
    if isinstance(method, MIL):
        memory = method.memory_optimizer
        method.memory_optimizer = Optimizer(replace(memory.settings, optimizer="sgd"), memory.parameters)
    return method


def trained(bench: Bench, name: str) -> Method:
    """Train two stages with all hooks, on the same rows for any number of processes."""
    method = method_of(bench, name)
    domains = [Part(d, bench.dataset.rows_of(d)) for d in bench.domains]
    with seeded(0, "method"), process_rng_streams(0):
        batches = batches_of(bench.examples, bench.dataset, BATCH // parallel.world_size(), bench.domains)
        for stage in range(2):
            method.begin_stage(StageInfo(stage, tuple(p.domain for p in domains)))
            for phase in method.phases:
                method.begin_phase(phase)
                for optimizer in method.optimizers():
                    optimizer.restart()
                method.train()
                for step in range(STEPS):
                    train_step(method, next(batches))
                    method.on_valid(step, {"d0": 0.5}, {"d0": 1.0 + step})
            method.end_stage(bench.examples.one_pass(domains, BATCH))
    return method


def plain(state) -> object:
    """Convert a state to nested lists and tensors."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return [[str(key), plain(value)] for key, value in state.items()]
    return [plain(value) for value in state] if isinstance(state, list | tuple) else state


def every_method(names: list[str]) -> dict[str, tuple[dict[str, Tensor], object]]:
    """Return (parameters, complete state) per method."""
    benches: dict[str, Bench] = {}
    states = {}
    for name in names:
        encoder = encoder_of(name)
        if encoder not in benches:
            benches[encoder] = bench_of(encoder)
        method = trained(benches[encoder], name)
        states[name] = (dict(method.model.named_parameters()), plain(method.state_dict()))
    return states


def spec_of(method: str, plan: str, batch: int):
    settings = RUN | ({"method.slots": 3} if method.startswith("progressive") else {})
    return make_spec(DATA, method=method, plan=plan, steps=9, every=3, batch=batch, settings=settings)


def complete_run(method: str, plan: str, out: Path, *, stop_at: int = 0) -> dict:
    """Run to the record; with `stop_at` the last process requests a stop after that step, and the run is resumed."""
    spec, workspace = spec_of(method, plan, 2), Workspace(DATA, cache=None)
    episode = workspace.episodes(spec)[0]
    count, stopped = 0, False

    def tick(metrics) -> None:
        nonlocal count
        count += 1
        if count == stop_at and parallel.rank() == parallel.world_size() - 1:
            request_stop()

    if stop_at:
        try:
            with stop_at_signal():
                train_and_save(spec, episode, replace(workspace, out=out), tick=tick)
        except Interrupted:
            stopped = True
        assert stopped, "all processes stop"
        assert checkpoint_path(spec, episode, out).exists() == parallel.is_first()
    record = train_and_save(spec, episode, Workspace(DATA, cache=None, out=out))
    return {"record": record.stages, "engagement": record.engagement, "steps": count, "id": record.id}


def worker(rank: int, folder: str, names: list[str], runs: list[tuple[str, str, int]]) -> None:
    """Run one of two processes and write its results to a file, which the tests read."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    parallel.init_process_group(dist.FileStore(f"{folder}/store", 2), rank, 2)
    results = {"methods": every_method(names), "runs": {}}
    for method, plan, at in runs:
        # one folder per process shows which process writes
        straight = complete_run(method, plan, Path(folder) / f"straight{rank}")
        results["runs"][method, plan] = (
            straight,
            complete_run(method, plan, Path(folder) / f"resumed{rank}", stop_at=at),
        )
    spec, workspace = spec_of("erm", "leave-one-out", 3), Workspace(DATA, cache=None)
    interrupt(spec, workspace, Path(folder) / f"interrupted{rank}")
    results["reports"] = parallel.may_report()
    torch.save(results, f"{folder}/results{rank}")
    parallel.all_max(0)
    if rank == 1:
        os._exit(0)  # ends without notice
    try:
        parallel.all_max(0)
    except parallel.Lost as error:
        Path(folder, "lost").write_text(str(error))
    os._exit(0)


def interrupt(spec, workspace: Workspace, out: Path) -> None:
    """Leave the checkpoint of an interrupted run."""
    try:
        with stop_at_signal():
            train_and_save(
                spec, workspace.episodes(spec)[0], replace(workspace, out=out), tick=lambda _: request_stop()
            )
    except Interrupted:
        return
    raise AssertionError("the run was not interrupted")
