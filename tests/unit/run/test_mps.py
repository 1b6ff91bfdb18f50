"""The MPS daemon of concurrent runs on one GPU, with a program that stands in for NVIDIA's."""

import os
import stat
from pathlib import Path

import pytest
import torch

from holdfast.run import mps

CUDA = torch.device("cuda")
PROGRAM = """#!/bin/sh
echo "args: $* pipe: $CUDA_MPS_PIPE_DIRECTORY" >> "$MPS_TEST_LOG"
[ "$1" = "-d" ] && exit {code}
cat >> "$MPS_TEST_LOG"
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (mps.PIPES, mps.LOGS, mps.OFF):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("MPS_TEST_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path / "log"


def _install(folder: Path, code: int = 0) -> None:
    program = folder / mps.CONTROL
    program.write_text(PROGRAM.format(code=code))
    program.chmod(program.stat().st_mode | stat.S_IEXEC)


def test_the_daemon_serves_the_workers_and_ends_with_them(log: Path) -> None:
    _install(log.parent)
    with mps.mps_daemon(CUDA, 4) as variables:
        pipe = variables[mps.PIPES]
        assert Path(pipe).is_dir()
        assert "get_server_list" in log.read_text()
        assert "quit" not in log.read_text()
    assert f"args: -d pipe: {pipe}" in log.read_text()
    assert log.read_text().endswith("quit\n")
    assert not Path(pipe).parent.exists()


def test_the_daemon_ends_after_an_error(log: Path) -> None:
    _install(log.parent)
    with pytest.raises(KeyboardInterrupt), mps.mps_daemon(CUDA, 4):
        raise KeyboardInterrupt
    assert log.read_text().endswith("quit\n")


@pytest.mark.parametrize(
    ("gpus", "workers", "runs", "share"),
    [
        ("0", 4, 90, None), ("0", 7, 90, None), ("0", 8, 16, "25"), ("0", 8, 15, None),
        ("0", 15, 90, "13"), ("0,1", 15, 90, None), ("0,1", 16, 90, "25"),
    ],
)  # fmt: skip
def test_many_workers_have_a_share_of_the_gpu(log: Path, monkeypatch, gpus, workers, runs, share) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    monkeypatch.delenv(mps.SHARE, raising=False)
    assert mps.with_share({mps.PIPES: "/tmp/mps"}, workers, runs).get(mps.SHARE) == share
    assert mps.with_share({}, workers, runs) == {}  # without the daemon of this command
    monkeypatch.setenv(mps.SHARE, "50")
    assert mps.SHARE not in mps.with_share({mps.PIPES: "/tmp/mps"}, workers, runs)  # the user's value is inherited


def test_a_failed_start_is_reported_and_workers_run_without_it(log: Path, caplog) -> None:
    _install(log.parent, code=3)
    with mps.mps_daemon(CUDA, 4) as variables:
        assert variables == {}
    assert "CUDA MPS cannot be started (exit code 3)" in caplog.text


def test_a_missing_program_is_reported(log: Path, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    monkeypatch.setenv("PATH", str(log.parent))
    with mps.mps_daemon(CUDA, 2) as variables:
        assert variables == {}
    assert "CUDA MPS is not installed" in caplog.text


@pytest.mark.parametrize(
    ("device", "count", "environment", "expected"),
    [
        (CUDA, 2, {"CUDA_VISIBLE_DEVICES": "0"}, True),
        (CUDA, 2, {"CUDA_VISIBLE_DEVICES": "0,1"}, False),
        (CUDA, 3, {"CUDA_VISIBLE_DEVICES": "0,1"}, True),
        (CUDA, 2, {"CUDA_VISIBLE_DEVICES": "0", mps.OFF: "0"}, False),
        (CUDA, 2, {"CUDA_VISIBLE_DEVICES": "0", mps.PIPES: "/tmp/mps"}, False),
        (torch.device("cpu"), 2, {"CUDA_VISIBLE_DEVICES": "0"}, False),
    ],
)
def test_only_workers_that_share_a_gpu_need_it(device, count, environment, expected) -> None:
    assert mps.wanted(device, count, environment) is expected
