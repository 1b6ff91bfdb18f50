"""Parallel runs from the command line: no run is lost if a node dies or the driver is stopped or killed."""

import importlib.util
import signal
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from holdfast.data.synthetic import world
from holdfast.record import load
from lab.benchmarks.engines import cluster
from tests import processes
from tests.processes import wait_for

SEARCH = ["--methods=erm", "--trials=4", "--seeds=2", "--encoder=mlp", "--set=encoder.hidden=[16]", "--device=cpu"]
RUNS = 24  # of 4 trials, 2 seeds and 3 targets
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the package ray is not installed")


@pytest.fixture
def arrays(tmp_path):
    data = world("vector", "rotation", domains=3, size=60)
    labels, domains = np.asarray(data.classes, dtype=str)[data.y], np.asarray(data.domains, dtype=str)[data.domain]
    np.savez(tmp_path / "world.npz", x=data.raw.data, y=labels, domain=domains)
    return tmp_path / "world.npz"


def start(arrays, out: Path, *words, steps=500):
    """Start a sweep in its own session; its processes are recognised by the cache folder in their environment."""
    words = ("sweep", arrays, f"--out={out}", f"--steps={steps}", *SEARCH, *words)
    return processes.start(out.parent, *words, session=True, HOLDFAST_CACHE=f"{out}-cache", HOLDFAST_SAVE_SECONDS="0.1")


def finish(process) -> str:
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    return out + err


def finished(out: Path) -> int:
    return len(list((out / "records").glob("*.json")))


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
        wait_for(lambda: finished(tmp_path / "ray") >= RUNS // 2 and busy(nodes.nodes[1].pid), process)
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
        wait_for(lambda before=before: finished(out) > before + 2, process)
        process.send_signal(sent)
        _, err = process.communicate(timeout=120)
        assert process.returncode == {signal.SIGINT: 130, signal.SIGKILL: -9}[sent], err
        end = time.monotonic() + 200
        while running_processes(out):
            assert time.monotonic() < end
            time.sleep(0.02)
        assert 2 * number < finished(out) < RUNS
    times = {path: path.stat().st_mtime_ns for path in (out / "records").glob("*.json")}
    assert f"{len(times)} of {RUNS} runs" in finish(start(arrays, out, *words))
    assert all(path.stat().st_mtime_ns == written for path, written in times.items())
    finish(start(arrays, tmp_path / "local"))
    assert records(out) == records(tmp_path / "local")
