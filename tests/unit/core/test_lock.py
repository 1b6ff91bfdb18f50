"""The lock on a folder: exclusive between processes, reentrant within one, released when a process is killed."""

import os
import subprocess
import sys

import pytest

from holdfast.core.errors import BadInput
from holdfast.core.files import LOCK_NAME, locked

HOLD = """
import pathlib, sys
from holdfast.core.files import locked
with locked(pathlib.Path(sys.argv[1])):
    print("in", flush=True)
    sys.stdin.read()
"""


def test_the_error_names_folder_and_process_and_a_killed_process_releases_the_lock(tmp_path):
    folder = tmp_path / "out"
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout.readline() == "in\n"
        with pytest.raises(BadInput, match=rf"{folder}.* process {other.pid} on .*--out"), locked(folder):
            pass
    finally:
        other.kill()
        other.communicate()
    assert (folder / LOCK_NAME).exists()
    with locked(folder):
        assert (folder / LOCK_NAME).read_text().startswith(f"{os.getpid()}\n")
    assert not (folder / LOCK_NAME).exists()


def test_the_lock_is_reentrant_and_leaves_no_files(tmp_path):
    with locked(tmp_path / "new"):
        with locked(tmp_path / "new"):
            pass
        assert (tmp_path / "new" / LOCK_NAME).exists()
    assert not (tmp_path / "new").exists()  # created by the lock and empty
    (tmp_path / "existing").mkdir()
    with pytest.raises(RuntimeError, match="inside"), locked(tmp_path / "existing"):
        raise RuntimeError("inside")
    assert list((tmp_path / "existing").iterdir()) == []


def test_a_file_is_not_a_folder_in_use(tmp_path):
    (tmp_path / "out").write_text("report")
    with pytest.raises(BadInput, match=r"out is a file, expected a folder.*--out"), locked(tmp_path / "out"):
        pass
    assert (tmp_path / "out").read_text() == "report"


@pytest.mark.parametrize("content", ["", "{", "1", "x\ny\n", "[" * 9000])
def test_a_leftover_lock_file_is_ignored(tmp_path, content):
    (tmp_path / LOCK_NAME).write_text(content)
    with locked(tmp_path):
        assert (tmp_path / LOCK_NAME).read_text().startswith(f"{os.getpid()}\n")
    assert not (tmp_path / LOCK_NAME).exists()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="needs file permissions")
def test_a_folder_without_write_permission_is_named(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(BadInput, match=str(tmp_path)), locked(tmp_path):
        pass
    tmp_path.chmod(0o700)
