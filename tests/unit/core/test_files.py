import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from holdfast.core.checkpoint import load_tensors, load_tree, save_tree
from holdfast.core.errors import BadInput, Damaged
from holdfast.core.files import LOCK_NAME, locked, read_json, write_atomic, write_folder, write_text


def test_a_tree_round_trips_with_its_types(tmp_path):
    tree = {
        "a": [1, 2.5, None, True, "x"],
        3: (torch.arange(4), {"deep": torch.zeros(2, 0)}),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "t": torch.randn(3, 4).T,
    }
    loaded = load_tree(save_tree(tmp_path / "t.safetensors", tree))
    assert loaded["a"] == tree["a"]
    assert torch.equal(loaded[3][0], tree[3][0])
    assert isinstance(loaded[3], tuple)
    assert loaded[3][1]["deep"].shape == (2, 0)
    assert loaded["half"].dtype == torch.bfloat16
    assert torch.equal(loaded["t"], tree["t"])


def test_shared_tensors_and_empty_trees_are_fine(tmp_path):
    w = torch.randn(3)
    loaded = load_tree(save_tree(tmp_path / "t", {"a": w, "b": w[:2]}))
    assert torch.equal(loaded["b"], w[:2])
    assert load_tree(save_tree(tmp_path / "u", {"n": 1})) == {"n": 1}


def test_a_truncated_checkpoint_and_an_unsupported_type_are_errors(tmp_path):
    path = save_tree(tmp_path / "t", {"a": torch.zeros(100)})
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(BadInput, match=str(path)):
        load_tree(path)
    with pytest.raises(TypeError, match="not set"):
        save_tree(tmp_path / "v", {"a": {1, 2}})


def test_a_failed_write_leaves_the_old_file_and_no_draft(tmp_path):
    path = write_text(tmp_path / "a.txt", "old")

    def full(draft: Path) -> None:
        draft.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(BadInput, match=r"no space left to write .*a\.txt"):
        write_atomic(path, full)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_flipped_bit_is_detected(tmp_path):
    path = save_tree(tmp_path / "t", {"a": torch.zeros(100), "n": 1})
    content = path.read_bytes()
    for at in (len(content) - 7, content.index(b'"tree"') + 30):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(Damaged):
            load_tree(path)


def test_a_safetensors_file_without_checksum_is_accepted(tmp_path):
    save_file({"w": torch.ones(3)}, tmp_path / "w.safetensors", metadata={"format": "pt"})
    tensors, metadata = load_tensors(tmp_path / "w.safetensors")
    assert tensors["w"].tolist() == [1, 1, 1]
    assert metadata == {"format": "pt"}


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000, b'{"a": ' * 5000])
def test_a_file_that_is_not_json_or_too_large_is_damaged(tmp_path, content):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(Damaged, match=r"x\.json"):
        read_json(tmp_path / "x.json")
    (tmp_path / "x.json").write_text("[1, 2, 3]")
    with pytest.raises(Damaged, match=r"x\.json.*at most"):
        read_json(tmp_path / "x.json", max_bytes=4)
    assert read_json(tmp_path / "x.json") == [1, 2, 3]


def refused(number):
    """Return a writer that fails as a library in Rust does."""

    def write(*_, **__):
        raise RuntimeError(f"I/O error: {os.strerror(number)} (os error {number})")

    return write


@pytest.mark.parametrize(("number", "sentence"), [(errno.EIO, "cannot write"), (errno.EDQUOT, "no space left")])
def test_an_error_of_the_safetensors_library_names_the_file(tmp_path, monkeypatch, number, sentence):
    monkeypatch.setattr("holdfast.core.checkpoint.save_file", refused(number))
    with pytest.raises(BadInput, match=rf"{sentence}.*t\.safetensors"):
        save_tree(tmp_path / "t.safetensors", {"a": torch.zeros(2)})
    assert list(tmp_path.iterdir()) == []


def write_pair(content):
    def write(folder):
        for name in ("config.json", "weights"):
            (folder / name).write_text(content)

    return write


def test_a_folder_has_its_earlier_files_if_a_rename_fails(tmp_path, monkeypatch):
    names = ("config.json", "weights", "old")
    write_folder(tmp_path / "m", write_pair("first"), names=names)
    (tmp_path / "m" / "old").write_text("first")
    (tmp_path / "m" / "other").write_text("stays")
    before = {path.name: path.read_text() for path in (tmp_path / "m").iterdir()}
    rename = os.replace
    for failing in range(1, 6):
        calls = []

        def replace(source, target, failing=failing, calls=calls):
            calls.append(source)
            if len(calls) == failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            rename(source, target)

        monkeypatch.setattr(os, "replace", replace)
        with pytest.raises(BadInput, match=r"cannot write .*m \("):
            write_folder(tmp_path / "m", write_pair("second"), names=names)
        assert {path.name: path.read_text() for path in (tmp_path / "m").iterdir()} == before
    monkeypatch.setattr(os, "replace", rename)
    write_folder(tmp_path / "m", write_pair("second"), names=names)
    after = {path.name: path.read_text() for path in (tmp_path / "m").iterdir()}
    assert after == {"config.json": "second", "weights": "second", "other": "stays"}


def test_a_folder_is_unchanged_if_its_draft_cannot_be_written(tmp_path):
    write_folder(tmp_path / "m", write_pair("first"), names=("config.json",))
    with pytest.raises(BadInput, match="no space left to write"):
        write_folder(tmp_path / "m", refused(errno.ENOSPC), names=("config.json",))
    assert {path.name: path.read_text() for path in (tmp_path / "m").iterdir()} == {
        "config.json": "first",
        "weights": "first",
    }


def test_half_of_a_surrogate_pair_is_written_as_its_escape(tmp_path):
    assert write_text(tmp_path / "a.txt", "é \ud800").read_text(encoding="utf-8") == "é \\ud800"


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
