import json
import os
import socket
import subprocess
import sys

import pytest

from holdfast.core.errors import BadInput
from holdfast.core.files import NAME, locked

HOLD = """
import pathlib, sys
from holdfast.core.files import locked
with locked(pathlib.Path(sys.argv[1])):
    print("in", flush=True)
    sys.stdin.read()
"""


def test_another_process_is_named_and_a_dead_one_keeps_nothing(tmp_path):
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "out")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout.readline() == "in\n"
        with pytest.raises(BadInput, match=rf"in use by process {other.pid} on .*--out"), locked(tmp_path / "out"):
            pass
    finally:
        other.kill()
        other.communicate()
    assert (tmp_path / "out" / NAME).exists()
    with locked(tmp_path / "out"):
        assert json.loads((tmp_path / "out" / NAME).read_text())["pid"] == os.getpid()
    assert not (tmp_path / "out" / NAME).exists()


def test_a_process_may_ask_again_and_leaves_nothing(tmp_path):
    with locked(tmp_path / "new"):
        with locked(tmp_path / "new"):
            pass
        assert (tmp_path / "new" / NAME).exists()
    assert not (tmp_path / "new").exists()  # it was not there before, and nothing was put there
    (tmp_path / "mine").mkdir()
    with pytest.raises(RuntimeError, match="inside"), locked(tmp_path / "mine"):
        raise RuntimeError("inside")
    assert list((tmp_path / "mine").iterdir()) == []


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"pid": "x", "host": 3}', '{"pid": -1, "host": "h"}', "[" * 9000])
def test_what_is_no_lock_keeps_nobody_out(tmp_path, content):
    (tmp_path / NAME).write_text(content)
    with locked(tmp_path):
        assert json.loads((tmp_path / NAME).read_text())["pid"] == os.getpid()


def test_a_later_process_with_the_same_number_is_another(tmp_path):
    told = {"pid": os.getppid(), "host": socket.gethostname(), "began": "another boot/1"}
    (tmp_path / NAME).write_text(json.dumps(told))
    with locked(tmp_path):
        assert json.loads((tmp_path / NAME).read_text())["pid"] == os.getpid()


def test_of_another_machine_nothing_is_known(tmp_path):
    (tmp_path / NAME).write_text(json.dumps({"pid": 1, "host": "elsewhere", "began": ""}))
    with pytest.raises(BadInput, match=r"process 1 on elsewhere.*delete .*\.lock"), locked(tmp_path):
        pass
