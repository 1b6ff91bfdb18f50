import errno
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from holdfast.core.checkpoint import AllocationLimit, load_tensors, load_tree, save_tree
from holdfast.core.errors import BadInput, Damaged
from holdfast.core.files import read_json, write_atomic, write_text


def test_a_tree_comes_back_with_its_kinds(tmp_path):
    tree = {
        "a": [1, 2.5, None, True, "x"],
        3: (torch.arange(4), {"deep": torch.zeros(2, 0)}),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "t": torch.randn(3, 4).T,
    }
    back = load_tree(save_tree(tmp_path / "t.safetensors", tree))
    assert back["a"] == tree["a"]
    assert torch.equal(back[3][0], tree[3][0])
    assert isinstance(back[3], tuple)
    assert back[3][1]["deep"].shape == (2, 0)
    assert back["half"].dtype == torch.bfloat16
    assert torch.equal(back["t"], tree["t"])


def test_shared_tensors_and_empty_trees_are_fine(tmp_path):
    w = torch.randn(3)
    back = load_tree(save_tree(tmp_path / "t", {"a": w, "b": w[:2]}))
    assert torch.equal(back["b"], w[:2])
    assert load_tree(save_tree(tmp_path / "u", {"n": 1})) == {"n": 1}


def test_a_broken_or_foreign_checkpoint_is_named(tmp_path):
    path = save_tree(tmp_path / "t", {"a": torch.zeros(100)})
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(BadInput, match="not a whole checkpoint"):
        load_tree(path)
    with pytest.raises(TypeError, match="not set"):
        save_tree(tmp_path / "v", {"a": {1, 2}})


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(tmp_path):
    path = write_text(tmp_path / "a.txt", "old")

    def full(draft: Path) -> None:
        draft.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(BadInput, match=r"no space left to write .*a\.txt"):
        write_atomic(path, full)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_one_flipped_bit_is_noticed(tmp_path):
    path = save_tree(tmp_path / "t", {"a": torch.zeros(100), "n": 1})
    whole = path.read_bytes()
    for at in (len(whole) - 7, whole.index(b'"tree"') + 30):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(Damaged):
            load_tree(path)


def test_tensors_from_elsewhere_have_no_checksum(tmp_path):
    save_file({"w": torch.ones(3)}, tmp_path / "w.safetensors", metadata={"format": "pt"})
    tensors, told = load_tensors(tmp_path / "w.safetensors")
    assert tensors["w"].tolist() == [1, 1, 1]
    assert told == {"format": "pt"}


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000, b'{"a": ' * 5000])
def test_what_is_no_json_is_damaged(tmp_path, content):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(Damaged, match=r"x\.json is not a JSON file"):
        read_json(tmp_path / "x.json")
    (tmp_path / "x.json").write_text("[1, 2, 3]")
    with pytest.raises(Damaged, match="at most"):
        read_json(tmp_path / "x.json", max_bytes=4)
    assert read_json(tmp_path / "x.json") == [1, 2, 3]


def test_a_tensor_larger_than_its_file_is_refused_before_it_is_made():
    with AllocationLimit(1000, where="model"):
        assert torch.nn.Linear(30, 30).weight.shape == (30, 30)
        with pytest.raises(BadInput, match="1,000,000,000,000 numbers at once"):
            torch.nn.Linear(10**6, 10**6)
    with AllocationLimit(1000, where="model"), pytest.raises(BadInput, match="numbers at once"):
        torch.nn.Sequential(*(torch.nn.Linear(20, 20) for _ in range(1000)))
