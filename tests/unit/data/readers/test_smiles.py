"""Parsing of SMILES in several processes, and the cache of parsed molecules."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from holdfast.core.errors import BadInput
from holdfast.data.readers import molecules as module
from holdfast.data.readers import smiles

pytestmark = pytest.mark.molecules
TEXTS = ["CCO", "c1ccccc1", "C", "N[C@@H](C)C(=O)O", "C/C=C/C", "[Na+].[Cl-]", "F[P](F)(F)(F)(F)F", "OCC#N"] * 3


def _assert_equal(a: smiles.Parsed, b: smiles.Parsed) -> None:
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def test_several_processes_parse_as_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smiles, "PER_PROCESS", 8)
    monkeypatch.setattr(smiles.os, "sched_getaffinity", lambda _: {0, 1, 2})
    started = []
    start = smiles._start_worker
    monkeypatch.setattr(smiles, "_start_worker", lambda: started.append(start()) or started[-1])
    texts = [*TEXTS[:10], "not a molecule", *TEXTS[10:]]
    parsed = smiles.parse_all(texts)
    assert len(started) == 2
    assert all(worker.returncode == 0 for worker in started)
    _assert_equal(parsed, smiles.parse(texts))
    assert parsed.atom_counts[10] == 0


def test_the_work_of_a_dead_worker_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smiles, "PER_PROCESS", 8)
    monkeypatch.setattr(smiles.os, "sched_getaffinity", lambda _: {0, 1})
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    monkeypatch.setattr(smiles, "_start_worker", lambda: subprocess.Popen(command, **pipes))
    _assert_equal(smiles.parse_all(TEXTS), smiles.parse(TEXTS))


def test_a_worker_does_not_import_torch() -> None:
    code = "import holdfast.data.readers.smiles, sys; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_parsed_molecules_are_stored_and_read_again(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    expected = module.molecules(TEXTS)
    assert not list(tmp_path.iterdir())  # too few to store
    monkeypatch.setattr(module, "CACHED", 3)
    calls = []
    parse_all = module.parse_all
    monkeypatch.setattr(module, "parse_all", lambda texts: calls.append(1) or parse_all(texts))
    for _ in range(2):
        for a, b in zip(module.molecules(TEXTS), expected, strict=True):
            assert a.weights is not None
            assert b.weights is not None
            assert torch.equal(a.nodes, b.nodes)
            assert torch.equal(a.edges, b.edges)
            assert torch.equal(a.weights, b.weights)
    assert len(calls) == 1
    (file,) = (tmp_path / "molecules").glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-9])
    module.molecules(TEXTS)
    assert len(calls) == 2
    module.molecules(TEXTS)
    assert len(calls) == 2
    with pytest.raises(BadInput, match="row 25: 'not a molecule' is not a molecule in SMILES"):
        module.molecules([*TEXTS, "not a molecule"])


def test_a_cache_that_cannot_be_written_is_reported(tmp_path, monkeypatch, caplog) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("HOLDFAST_CACHE", str(blocked))
    monkeypatch.setattr(module, "CACHED", 3)
    assert len(module.molecules(TEXTS)) == len(TEXTS)
    assert "cannot be written, so the next run parses the molecules again" in caplog.text
