"""Parallel runs from the command line: no run is lost if a node dies or the driver is stopped or killed."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from holdfast.data.synthetic import world
from holdfast.record import load
from lab.benchmarks.engines import cluster

COMMAND = [sys.executable, "-c", "from holdfast.cli import main; main()"]
SEARCH = ["--methods=erm", "--trials=4", "--seeds=2", "--encoder=mlp", "--set=encoder.hidden=[16]", "--device=cpu"]
RUNS = 24  # of 4 trials, 2 seeds and 3 targets
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the package ray is not installed")


@pytest.fixture
def arrays(tmp_path):
    data = world("vector", "rotation", domains=3, size=60)
    labels, domains = np.asarray(data.classes, dtype=str)[data.y], np.asarray(data.domains, dtype=str)[data.domain]
    np.savez(tmp_path / "world.npz", x=data.raw.data, y=labels, domain=domains)
    return tmp_path / "world.npz"


def start(arrays, out: Path, *words, steps=500) -> subprocess.Popen:
    """Start a sweep in its own session; its processes are recognised by the cache folder in their environment."""
    return subprocess.Popen(
        [*COMMAND, "sweep", str(arrays), f"--out={out}", f"--steps={steps}", *SEARCH, *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HOLDFAST_CACHE": f"{out}-cache", "HOLDFAST_SAVE_SECONDS": "0.1"},
    )  # fmt: skip


def finish(process: subprocess.Popen) -> str:
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    return out + err


def finished(out: Path) -> int:
    return len(list((out / "records").glob("*.json")))


def wait_until(condition, seconds=200.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def records(out: Path) -> list[dict]:
    """All records, without time and machine."""
    return [{**asdict(record), "cost": None, "machine": None} for record in load(out)]


def running_processes(out: Path) -> list[int]:
    """Processes of this sweep that are still running."""
    processes = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"HOLDFAST_CACHE={out}-cache".encode() in path.read_bytes():
                processes.append(int(path.parent.name))
        except OSError:
            continue  # it ended meanwhile
    return processes


def busy(session: int) -> bool:
    """Whether the node with this session runs a task."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and b"ray::_task" in (path.parent / "cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False


@needs_ray
@pytest.mark.slow
def test_records_equal_local_ones_although_a_node_dies(arrays, tmp_path):
    with cluster((1, 1)) as nodes:
        process = start(arrays, tmp_path / "ray", "--engine=ray", f"--address={nodes.address}")
        wait_until(
            lambda: (finished(tmp_path / "ray") >= RUNS // 2 and busy(nodes.nodes[1].pid)) or process.poll() is not None
        )
        assert finished(tmp_path / "ray") < RUNS
        nodes.kill(1)
        finish(process)
    finish(start(arrays, tmp_path / "local"))
    on_cluster, local = records(tmp_path / "ray"), records(tmp_path / "local")
    assert len(on_cluster) == RUNS
    assert on_cluster == local
    assert not list((tmp_path / "ray" / "checkpoints").glob("*"))
    assert running_processes(tmp_path / "ray") == []


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--jobs=2",), pytest.param(("--engine=ray", "--cpus=0.5"), marks=needs_ray)])
def test_stopped_and_killed_driver_loses_no_run_and_leaves_no_process(arrays, tmp_path, words):
    out = tmp_path / "runs"
    for number, sent in enumerate((signal.SIGINT, signal.SIGKILL), start=1):
        before = finished(out)
        process = start(arrays, out, *words)
        wait_until(lambda before=before, process=process: finished(out) > before + 2 or process.poll() is not None)
        process.send_signal(sent)
        _, err = process.communicate(timeout=120)
        assert process.returncode == {signal.SIGINT: 130, signal.SIGKILL: -9}[sent], err
        wait_until(lambda: running_processes(out) == [])
        assert 2 * number < finished(out) < RUNS
    times = {path: path.stat().st_mtime_ns for path in (out / "records").glob("*.json")}
    assert f"{len(times)} of {RUNS} runs" in finish(start(arrays, out, *words))
    assert all(path.stat().st_mtime_ns == written for path, written in times.items())
    finish(start(arrays, tmp_path / "local"))
    assert records(out) == records(tmp_path / "local")
