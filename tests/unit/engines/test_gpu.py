"""The number of concurrent runs on a GPU follows measured memory."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from typing import Any

import pytest
import torch

from holdfast.core.errors import BadInput
from holdfast.data.synthetic import world
from holdfast.run import gpu_memory, local, worker
from holdfast.run.gpu_memory import CONTEXT_BYTES, MARGIN, Capacity, Usage, measure
from holdfast.run.jobs import Job
from holdfast.run.progress import ProgressListener
from holdfast.run.settings import make_spec
from holdfast.run.workspace import Workspace

GB = 2**30
RUN = int(10 * GB / MARGIN) - CONTEXT_BYTES  # a run that needs 10 GB with context and margin


def test_a_gpu_is_filled_up_to_the_limit() -> None:
    capacity = Capacity(gpus=1, limit=16)
    assert capacity.count == 1
    capacity.add(0, Usage(RUN, free=58 * GB, total=80 * GB))  # 4 GB stay free
    assert capacity.count == 6
    capacity = Capacity(gpus=1, limit=4)
    capacity.add(0, Usage(RUN, free=58 * GB, total=80 * GB))
    assert capacity.count == 4


def test_a_full_gpu_gets_no_further_run() -> None:
    capacity = Capacity(gpus=1, limit=16)
    capacity.add(0, Usage(RUN, free=9 * GB, total=80 * GB))
    assert capacity.count == 1


def test_all_workers_report_before_others_start() -> None:
    """Memory that a worker is about to use is not free."""
    capacity = Capacity(gpus=1, limit=16)
    capacity.add(0, Usage(RUN, free=35 * GB, total=80 * GB))
    assert capacity.count == 4
    for index in (0, 1, 0, 2):
        capacity.add(index, Usage(RUN, free=70 * GB, total=80 * GB))
    assert capacity.count == 4
    capacity.add(3, Usage(RUN, free=25 * GB, total=80 * GB))
    assert capacity.count == 6


def test_the_largest_run_counts() -> None:
    capacity = Capacity(gpus=2, limit=16)
    capacity.add(0, Usage(RUN, free=64 * GB, total=80 * GB))
    assert capacity.count == 2
    capacity.add(1, Usage(2 * RUN + CONTEXT_BYTES, free=64 * GB, total=80 * GB))
    assert capacity.count == 2 + 2 * 3


def test_a_cpu_has_nothing_to_measure() -> None:
    assert measure(torch.device("cpu")) is None


@dataclass
class FakeWorker:
    """Reports memory and an outcome as soon as a job begins."""

    workspace: Any
    index: int
    variables: Any
    peers: list["FakeWorker"]

    def __post_init__(self) -> None:
        self.job: Job | None = None
        self.connection, self.other_end = Pipe()

    def begin(self, job: Job) -> None:
        self.job = job
        self.other_end.send(("memory", Usage(RUN, free=(38 - 10 * len(self.peers)) * GB, total=80 * GB)))
        self.other_end.send(("done", BadInput(job.name)))


@pytest.mark.parametrize(("jobs", "expected"), [(0, 3), (2, 2)])
def test_workers_join_while_they_fit(monkeypatch: pytest.MonkeyPatch, tmp_path, jobs: int, expected: int) -> None:
    workers: list[FakeWorker] = []

    def start(workspace: Workspace, index: int, *, variables: Any, template: None) -> FakeWorker:
        workers.append(FakeWorker(workspace, index, variables, workers))
        return workers[-1]

    replacements = {
        "_Worker": start, "_stop": lambda workers: None, "cores": lambda: 5, "_template": lambda *_: None,
        "worker_workspace": lambda jobs, workspace, **_: workspace,
        "mps_daemon": lambda device, count: nullcontext({}), "stop_at_signal": nullcontext,
    }  # fmt: skip
    for name, value in replacements.items():
        monkeypatch.setattr(local, name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    data = world("vector", "none", domains=3, size=60)
    workspace = Workspace(data, out=tmp_path)
    specs = [make_spec(data, seed=seed) for seed in range(3)]
    queue = [Job.of(spec, episode) for spec in specs for episode in workspace.episodes(spec)]
    on_gpu = replace(workspace, device=torch.device("cuda"))
    outcomes = list(local.Local(jobs).run(queue, on_gpu, watch=ProgressListener()))
    assert sorted(job.id for job, _ in outcomes) == sorted(job.id for job in queue)
    assert len(workers) == expected
    assert sorted(each.index for each in workers) == list(range(expected))


def test_a_worker_reports_memory_once_per_run(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = Usage(1, 2, 3)
    monkeypatch.setattr(worker, "measure", lambda device: usage)
    here, there = Pipe()
    report = worker._Reports(there, torch.device("cuda"))
    for count in (1, gpu_memory.MEASURED_STEPS, 40):
        report.steps(count)
    messages = []
    while here.poll():
        messages.append(here.recv())
    assert messages == [("steps", 1), ("steps", 10), ("memory", usage), ("steps", 40)]


@pytest.mark.gpu
def test_memory_of_a_gpu() -> None:
    held = torch.zeros(2**24, device="cuda")
    usage = measure(torch.device("cuda"))
    assert usage is not None
    assert usage.held >= held.nbytes
    assert 0 < usage.free < usage.total
