import errno
import os
from pathlib import Path

import pytest
import torch

from holdfast.core.checkpoint import load_tree, save_tree
from holdfast.core.errors import BadInput, unknown
from holdfast.core.files import write_text, write_whole


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
        write_whole(path, full)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_unknown_names_suggest_the_nearest():
    assert "did you mean 'coral'" in str(unknown("method", "corall", ["erm", "coral"]))
    assert "known: coral, erm" in str(unknown("method", "zzz", ["erm", "coral"]))
