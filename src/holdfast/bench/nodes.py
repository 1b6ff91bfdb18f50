"""A Ray cluster of a head and more nodes, all on this machine's loopback, that ends with whoever began it."""

from __future__ import annotations

import importlib.util
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

from holdfast.core.errors import BadInput
from holdfast.engines.ray import QUIET

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
