"""Benchmarks `engines` and `cluster`: overhead of Ray and of local processes on 200 tiny runs.

A tiny run trains a small network on vectors for 150 steps, about a quarter of a second. `cluster` predicts the time of
n runs on s slots as T = a + (R + o n) / s: R is the time the runs report, a the start-up time, o the overhead per run.
a and o are fitted on 20 and 80 runs and checked on 200.
"""

import importlib
import importlib.util
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from holdfast.core.errors import BadInput
from holdfast.core.forking import end_server
from holdfast.data.synthetic import world
from holdfast.engines.ray import ENVIRONMENT, Ray
from holdfast.engines.work import Local, run_all
from holdfast.spec import Spec
from holdfast.train.resolve import Request, resolve
from holdfast.train.run import Engine, train
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace
from lab.benchmarks.harness import Result, attempt, one_thread

RUNS, AT_ONCE, EACH, ROUNDS = 200, 2, 4, 3  # EACH: episodes per spec, one per domain
STEPS, FEWER = 150, 60
FEW, SOME, MANY = 20, 80, 200
SLOTS = 2  # nodes of one CPU each


def run(device: torch.device) -> list[Result]:
    """Measure the time of Ray relative to local processes, start-up included, and the overhead per run."""
    with one_thread():
        return [
            attempt(f"ray/local, {RUNS} runs, {AT_ONCE} at once", lambda: _ray_over_local(device), bar=1.3),
            attempt(f"ray/local, {RUNS} runs of {FEWER} steps", lambda: _ray_over_local(device, FEWER, 1), bar=None),
            Result("overhead of the local engine, ms per run", _overhead(device), bar=60.0),
        ]


def tiny(count: int, device: torch.device, steps: int = STEPS) -> tuple[list[Spec], Workspace]:
    """Return specs of this number of runs, which differ by seed, and their workspace."""
    workspace = Workspace(world("vector", "rotation", domains=EACH, size=60), device=device, cache=None)
    small = {"encoder.hidden": [32], "every": steps // 3}
    spec = make_spec(workspace.dataset, steps=steps, batch=16, device=device, settings=small)
    return [replace(spec, seed=seed) for seed in range(count // EACH)], workspace


def _ray_over_local(device: torch.device, steps: int = STEPS, rounds: int = ROUNDS) -> float:
    values = []
    for _ in range(rounds):
        end_server()
        local = sweep(Local(AT_ONCE), RUNS, device, steps).seconds
        values.append(sweep(Ray(), RUNS, device, steps).seconds / local)
    return median(values)


def _overhead(device: torch.device) -> float:
    """Return the milliseconds per run the engine adds to plain training: records, checks and episodes."""
    specs, workspace = tiny(RUNS, device)
    train(specs[0], workspace.episodes(specs[0])[0], workspace)  # warm
    values = []
    with tempfile.TemporaryDirectory() as folder:
        for spec in specs:
            start = time.perf_counter()
            for episode in workspace.episodes(spec):
                train(spec, episode, workspace)
            between = time.perf_counter()
            workspace.out = Path(folder)
            run_all(resolve(Request(specs=[spec]), workspace), workspace)
            values.append(1000 * (time.perf_counter() - between - (between - start)) / EACH)
    return median(values)


@dataclass(frozen=True)
class SweepTimes:
    """Seconds of a sweep, CPU seconds of its driver, seconds its runs report, and bytes of its records."""

    seconds: float
    driver: float
    inside: float
    stored: int


def run_cluster(device: torch.device) -> list[Result]:
    """Measure how well fewer runs predict the time of 200, and the costs per run."""
    with one_thread(), cluster((1,) * SLOTS) as nodes, _connected(nodes.address):
        sweep(Ray(nodes.address), 2 * 4, device)  # start the processes of the nodes and load the code
        few, some, many = (sweep(Ray(nodes.address), count, device) for count in (FEW, SOME, MANY))
    overhead = (SLOTS * (some.seconds - few.seconds) - (some.inside - few.inside)) / (SOME - FEW)
    start = few.seconds - (few.inside + FEW * overhead) / SLOTS
    predicted = start + (many.inside + MANY * overhead) / SLOTS
    return [
        Result(f"{MANY} runs, relative error of the prediction", abs(many.seconds / predicted - 1), bar=0.25),
        Result(f"{MANY} runs, s", many.seconds, bar=None),
        Result("predicted, s", predicted, bar=None),
        Result("start-up, ms", 1000 * start, bar=None),
        Result("run in its worker, ms", 1000 * many.inside / MANY, bar=None),
        Result("overhead per run, ms of a slot", 1000 * overhead, bar=None),
        Result("CPU time of the driver per run, ms", 1000 * many.driver / MANY, bar=None),
        Result("record, bytes", many.stored / MANY, bar=None),
    ]


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Share one connection among all sweeps."""
    ray = importlib.import_module("ray")
    ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield ray
    finally:
        ray.shutdown()


def sweep(engine: Engine, count: int, device: torch.device, steps: int = STEPS) -> SweepTimes:
    """Execute this number of runs; start-up and shutdown of the engine count."""
    specs, workspace = tiny(count, device, steps)
    with tempfile.TemporaryDirectory() as folder:
        start, cpu = time.perf_counter(), time.process_time()
        workspace.out = Path(folder)
        records = run_all(resolve(Request(specs=specs), workspace), workspace, engine=engine)
        elapsed, driver = time.perf_counter() - start, time.process_time() - cpu
        stored = sum(path.stat().st_size for path in (Path(folder) / "records").iterdir())
    assert len(records) == count
    return SweepTimes(elapsed, driver, sum(record.cost["seconds"] for record in records), stored)


START = 120.0  # time limit for the start of one node, in seconds


@dataclass(frozen=True)
class Cluster:
    """Address of a Ray cluster and the process of each node, head first; a node is a process session."""

    address: str
    nodes: list[subprocess.Popen[bytes]]

    def kill(self, at: int) -> None:
        """Kill one node, as a power cut would."""
        with suppress(ProcessLookupError):
            os.killpg(self.nodes[at].pid, signal.SIGKILL)
        self.nodes[at].wait()


@contextmanager
def cluster(cpus: Sequence[int] = (1, 1), *, memory_mb: int = 100) -> Iterator[Cluster]:
    """Start one node per entry of `cpus` on the loopback address; nodes and driver share an authentication token."""
    if importlib.util.find_spec("ray") is None:
        raise BadInput("a cluster needs the package ray: run `pip install 'holdfast[ray]'`")
    variables = {**ENVIRONMENT, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    folder = Path(tempfile.mkdtemp(prefix="hf-"))  # short, because socket paths have a length limit
    port = _free_port()
    started = Cluster(f"127.0.0.1:{port}", [])
    try:
        for at, count in enumerate(cpus):
            head = ["--head", f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false"]
            words = head if at == 0 else [f"--address={started.address}"]
            started.nodes.append(_start(words, count, memory_mb, folder / f"node{at}.txt"))
            _wait(started, folder)
        yield started
    finally:
        for at in reversed(range(len(started.nodes))):
            started.kill(at)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        shutil.rmtree(folder, ignore_errors=True)


def _start(words: list[str], cpus: int, memory_mb: int, log: Path) -> subprocess.Popen[bytes]:
    common = [
        "--block", "--node-ip-address=127.0.0.1", f"--num-cpus={cpus}", "--num-gpus=0",
        f"--object-store-memory={memory_mb * 2**20}", "--disable-usage-stats",
        "--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0",
    ]  # fmt: skip
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *words, *common]
    with log.open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True)


def _wait(started: Cluster, folder: Path) -> None:
    """Wait until the node runs; raise with its log otherwise."""
    log, node, end = folder / f"node{len(started.nodes) - 1}.txt", started.nodes[-1], time.monotonic() + START
    while "Ray runtime started" not in (output := log.read_text(errors="replace")):
        if node.poll() is not None or time.monotonic() > end:
            raise BadInput(f"a Ray node did not start: {' '.join(output.split())[-400:]}")
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as open_socket:
        open_socket.bind(("127.0.0.1", 0))
        return int(open_socket.getsockname()[1])
