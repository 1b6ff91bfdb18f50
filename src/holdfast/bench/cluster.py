"""What a run costs on a cluster: tiny runs on two Ray nodes of this machine, against what fewer of them foretell.

T = a + (R + o n) / s for n runs on s slots: R is what the runs say they took, a what beginning costs, o what a slot
spends beside each run; a and o come from 20 and 80 runs, and 200 check them.
"""

from __future__ import annotations

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from holdfast.bench.engines import tiny
from holdfast.bench.harness import Result, one_thread
from holdfast.core.errors import BadInput
from holdfast.run.many import run_all
from holdfast.run.ray import QUIET, Ray

FEW, SOME, MANY = 20, 80, 200
SLOTS = 2  # nodes of one CPU each


@dataclass(frozen=True)
class Seen:
    """One sweep: its seconds, the driver's own, the seconds that its runs say they took, and the bytes it left."""

    seconds: float
    driver: float
    inside: float
    stored: int


def run(device: torch.device) -> list[Result]:
    """How well fewer runs foretell 200, and what each run costs whom."""
    with one_thread(), cluster((1,) * SLOTS) as made, _connected(made.address):
        _sweep(made.address, 2 * 4, device)  # the nodes' processes have begun and have read the code
        few, some, many = (_sweep(made.address, count, device) for count in (FEW, SOME, MANY))
    beside = (SLOTS * (some.seconds - few.seconds) - (some.inside - few.inside)) / (SOME - FEW)
    start = few.seconds - (few.inside + FEW * beside) / SLOTS
    foretold = start + (many.inside + MANY * beside) / SLOTS
    return [
        Result(f"{MANY} runs: how far from foretold, as a share", abs(many.seconds / foretold - 1), bar=0.25),
        Result(f"{MANY} runs, s", many.seconds, bar=None),
        Result("foretold, s", foretold, bar=None),
        Result("beginning, ms", 1000 * start, bar=None),
        Result("a run in its worker, ms", 1000 * many.inside / MANY, bar=None),
        Result("beside a run, ms of a slot", 1000 * beside, bar=None),
        Result("driver's CPU a run, ms", 1000 * many.driver / MANY, bar=None),
        Result("record, bytes", many.stored / MANY, bar=None),
    ]


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """One connection for all sweeps, so that each begins alike."""
    ray = importlib.import_module("ray")
    ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield ray
    finally:
        ray.shutdown()


def _sweep(address: str, count: int, device: torch.device) -> Seen:
    specs, workspace = tiny(count, device)
    with tempfile.TemporaryDirectory() as folder:
        start, own = time.perf_counter(), time.process_time()
        done = run_all(specs, workspace, Path(folder), engine=Ray(address))
        took, driver = time.perf_counter() - start, time.process_time() - own
        stored = sum(path.stat().st_size for path in (Path(folder) / "records").iterdir())
    assert len(done) == count
    return Seen(took, driver, sum(record.cost["seconds"] for record in done), stored)


START = 120.0  # seconds that a node may take


@dataclass(frozen=True)
class Cluster:
    """Its address, and a process for each node, the head first; a node is a session of processes of its own."""

    address: str
    nodes: list[subprocess.Popen[bytes]]

    def kill(self, at: int) -> None:
        """What a power cut does to one node."""
        with suppress(ProcessLookupError):
            os.killpg(self.nodes[at].pid, signal.SIGKILL)
        self.nodes[at].wait()


@contextmanager
def cluster(cpus: Sequence[int] = (1, 1), *, memory_mb: int = 100) -> Iterator[Cluster]:
    """Nodes with so many CPUs each. Nodes that share a machine know each other by a token, which the driver has too."""
    if importlib.util.find_spec("ray") is None:
        raise BadInput("a cluster needs the package ray: run `pip install 'holdfast[ray]'`")
    told = {**QUIET, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    folder = Path(tempfile.mkdtemp(prefix="hf-"))  # short: the names of sockets have a limit
    made = Cluster(f"127.0.0.1:{_free_port()}", [])
    try:
        for at, count in enumerate(cpus):
            place = [
                "--head",
                f"--port={made.address.split(':')[1]}",
                f"--temp-dir={folder}",
                "--include-dashboard=false",
            ]
            words = place if at == 0 else [f"--address={made.address}"]
            made.nodes.append(_start(words, count, memory_mb, folder / f"node{at}.txt"))
            _wait(made, folder)
        yield made
    finally:
        for at in reversed(range(len(made.nodes))):
            made.kill(at)
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


def _wait(made: Cluster, folder: Path) -> None:
    """Until the node says that it runs, or why it does not."""
    log, node, end = folder / f"node{len(made.nodes) - 1}.txt", made.nodes[-1], time.monotonic() + START
    while "Ray runtime started" not in (said := log.read_text(errors="replace")):
        if node.poll() is not None or time.monotonic() > end:
            raise BadInput(f"a Ray node did not start: {' '.join(said.split())[-400:]}")
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as open_socket:
        open_socket.bind(("127.0.0.1", 0))
        return int(open_socket.getsockname()[1])
