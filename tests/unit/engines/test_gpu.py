"""GPUs that runs share: their number follows measured memory, and the MPS daemon serves them."""

import os
import stat
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.data.synthetic import world
from holdfast.engines import gpu, pool, work, worker
from holdfast.engines.gpu import CONTEXT_BYTES, MARGIN, Capacity, Usage, measure
from holdfast.train.progress import ProgressListener
from holdfast.train.run import Failed, Job
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace
from tests.unit.engines.conftest import iterated

CUDA = torch.device("cuda")
GB = 2**30
RUN = int(10 * GB / MARGIN) - CONTEXT_BYTES  # a run that needs 10 GB with context and margin


# GPUs, limit, reports (worker, bytes held, free GB) -> number of workers after each report, 4 GB stay free
GROWTH = [
    (1, 16, [(0, RUN, 58)], [6]),
    (1, 4, [(0, RUN, 58)], [4]),
    (1, 16, [(0, RUN, 9)], [1]),
    (1, 16, [(0, RUN, 35), (0, RUN, 70), (1, RUN, 70), (2, RUN, 70), (3, RUN, 25)], [4, 4, 4, 4, 6]),  # all must report
    (2, 16, [(0, RUN, 64), (1, 2 * RUN + CONTEXT_BYTES, 64)], [2, 8]),  # the largest run counts
]


@pytest.mark.parametrize(("gpus", "limit", "reports", "counts"), GROWTH)
def test_workers_join_when_all_have_reported_and_the_largest_run_fits(gpus, limit, reports, counts) -> None:
    capacity = Capacity(gpus=gpus, limit=limit)
    for (index, held, free), count in zip(reports, counts, strict=True):
        capacity.add(index, Usage(held, free=free * GB, total=80 * GB))
        assert capacity.count == count


def test_a_cpu_has_nothing_to_measure() -> None:
    assert measure(torch.device("cpu")) is None


class FakeWorker:
    """Report memory and an outcome as soon as a job begins."""

    def __init__(self, index: int, peers: list["FakeWorker"], outcomes: list[Failed]) -> None:
        self.index, self.peers, self.outcomes = index, peers, outcomes
        self.job: Job | None = None
        self.limit, self.is_open, self.fills = 0.0, True, False
        self.connection, self.other_end = Pipe()

    def begin(self, job: Job, *, limit: float, fills: bool = False) -> None:
        self.job, self.limit = job, limit
        free = (38 - 10 * len(self.peers)) * GB
        self.other_end.send(("memory", Usage(RUN, free=free, total=80 * GB)))
        self.other_end.send(("done", self.outcomes.pop() if self.outcomes else Failed(job.name, "diverged")))

    def stop(self) -> None:
        assert self.is_open

    def end(self) -> int:
        self.is_open = False
        return 0


@pytest.fixture
def run_on_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Return a function that runs nine jobs on a GPU with fake workers, and returns jobs, outcomes and workers."""

    def run(jobs: int, outcomes: Sequence[Failed] = ()) -> tuple[list[Job], list[Any], list[FakeWorker]]:
        workers: list[FakeWorker] = []
        remaining = list(outcomes)

        def start(content: bytes, index: int, *, variables: Any, server: Any) -> FakeWorker:
            workers.append(FakeWorker(index, workers, remaining))
            return workers[-1]

        replacements = {
            (pool, "_Worker"): start, (pool, "cores"): lambda: 5, (pool, "shared_server"): lambda worker: None,
            (pool, "mps_daemon"): lambda device, count: nullcontext({}), (work, "max_workers"): lambda device: 5,
            (work, "stop_at_signal"): nullcontext,
        }  # fmt: skip
        for (module, name), value in replacements.items():
            monkeypatch.setattr(module, name, value)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        data = world("vector", "none", domains=3, size=60)
        workspace = Workspace(data, out=tmp_path, device=torch.device("cuda"))
        specs = [make_spec(data, seed=seed) for seed in range(3)]
        queue = [Job.of(spec, episode) for spec in specs for episode in workspace.episodes(spec)]
        ended = list(work.Local(jobs).run(iterated(queue), workspace, watch=ProgressListener()))
        assert sorted(job.id for job, _ in ended) == sorted(job.id for job in queue)
        return queue, ended, workers

    return run


@pytest.mark.parametrize(("jobs", "expected"), [(0, 3), (2, 2)])
def test_workers_join_while_they_fit(run_on_gpu, jobs: int, expected: int) -> None:
    _, _, workers = run_on_gpu(jobs)
    assert len(workers) == expected
    assert sorted(each.index for each in workers) == list(range(expected))


def test_a_run_that_lacks_memory_is_repeated_alone(run_on_gpu) -> None:
    """All other workers have ended when its second attempt begins."""
    queue, ended, workers = run_on_gpu(2, [Failed("too large", "memory")])
    assert dict(Counter(outcome.kind for _, outcome in ended)) == {"diverged": len(queue)}
    assert len(workers) == 4
    assert [each.is_open for each in workers[:2]] == [False, False]
    _, ended, _ = run_on_gpu(2, [Failed("too large", "memory")] * 3)
    assert [outcome.cause for _, outcome in ended if outcome.kind == "memory"] == ["too large"]


def test_a_worker_ends_after_an_error_on_a_gpu(run_on_gpu) -> None:
    """Its CUDA context may have failed."""
    _, ended, workers = run_on_gpu(2, [Failed("illegal access", "error")])
    assert [outcome.kind for _, outcome in ended].count("error") == 1
    assert len(workers) == 3


def test_a_worker_reports_memory_once_per_run(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = Usage(1, 2, 3)
    monkeypatch.setattr(worker, "measure", lambda device: usage)
    here, there = Pipe()
    report = worker._Reports(there, torch.device("cuda"))
    for count in (1, gpu.MEASURED_STEPS, 40):
        report.steps(count)
    messages = []
    while here.poll():
        messages.append(here.recv())
    assert messages == [("steps", 1), ("steps", 10), ("memory", usage), ("steps", 40)]


@pytest.mark.gpu
def test_memory_of_a_gpu() -> None:
    held = torch.zeros(2**24, device="cuda")
    usage = measure(torch.device("cuda"))
    assert usage.held >= held.nbytes
    assert 0 < usage.free < usage.total


PROGRAM = """#!/bin/sh
echo "args: $* pipe: $CUDA_MPS_PIPE_DIRECTORY" >> "$MPS_TEST_LOG"
[ "$1" = "-d" ] && exit {code}
cat >> "$MPS_TEST_LOG"
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (gpu.PIPES, gpu.LOGS, gpu.OFF):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("MPS_TEST_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path / "log"


def _install(folder: Path, code: int = 0) -> None:
    program = folder / gpu.CONTROL
    program.write_text(PROGRAM.format(code=code))
    program.chmod(program.stat().st_mode | stat.S_IEXEC)


def test_the_daemon_serves_the_workers_and_ends_with_them(log: Path) -> None:
    _install(log.parent)
    with gpu.mps_daemon(CUDA, 4) as variables:
        pipe = variables[gpu.PIPES]
        assert Path(pipe).is_dir()
        assert "get_server_list" in log.read_text()
        assert "quit" not in log.read_text()
    assert f"args: -d pipe: {pipe}" in log.read_text()
    assert log.read_text().endswith("quit\n")
    assert not Path(pipe).parent.exists()


def test_the_daemon_ends_after_an_error(log: Path) -> None:
    _install(log.parent)
    with pytest.raises(KeyboardInterrupt), gpu.mps_daemon(CUDA, 4):
        raise KeyboardInterrupt
    assert log.read_text().endswith("quit\n")


@pytest.mark.parametrize(
    ("gpus", "workers", "share"),
    [("0", 4, None), ("0", 7, None), ("0", 8, "25"), ("0", 15, "13"), ("0,1", 15, None), ("0,1", 16, "25")],
)
def test_many_workers_have_a_share_of_the_gpu(log: Path, monkeypatch, gpus, workers, share) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    monkeypatch.delenv(gpu.SHARE, raising=False)
    assert gpu.with_share({gpu.PIPES: "/tmp/mps"}, workers).get(gpu.SHARE) == share
    assert gpu.with_share({}, workers) == {}  # without the daemon of this command
    monkeypatch.setenv(gpu.SHARE, "50")
    assert gpu.SHARE not in gpu.with_share({gpu.PIPES: "/tmp/mps"}, workers)  # the user's value is inherited


@pytest.mark.parametrize(("code", "cause"), [(3, "cannot be started (exit code 3)"), (None, "is not installed")])
def test_without_the_daemon_workers_take_turns_with_a_warning(log: Path, monkeypatch, caplog, code, cause) -> None:
    if code is None:
        monkeypatch.setenv("PATH", str(log.parent))
    else:
        _install(log.parent, code)
    with gpu.mps_daemon(CUDA, 2) as variables:
        assert variables == {}
    assert f"CUDA MPS {cause}" in caplog.text


@pytest.mark.parametrize(
    ("device", "count", "environment", "expected"),
    [
        (CUDA, 2, {"CUDA_VISIBLE_DEVICES": "0"}, True),
        (CUDA, 2, {"CUDA_VISIBLE_DEVICES": "0,1"}, False),
        (CUDA, 3, {"CUDA_VISIBLE_DEVICES": "0,1"}, True),
        (CUDA, 2, {"CUDA_VISIBLE_DEVICES": "0", gpu.OFF: "0"}, False),
        (CUDA, 2, {"CUDA_VISIBLE_DEVICES": "0", gpu.PIPES: "/tmp/mps"}, False),
        (torch.device("cpu"), 2, {"CUDA_VISIBLE_DEVICES": "0"}, False),
    ],
)
def test_only_workers_that_share_a_gpu_need_it(device, count, environment, expected) -> None:
    assert gpu.wanted(device, count, environment) is expected
