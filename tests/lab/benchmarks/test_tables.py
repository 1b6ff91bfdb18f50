"""The benchmark of large tables writes every kind of column and measures another process."""

import numpy as np
import pytest
import torch

from holdfast.data.readers.tables import read_table
from lab.benchmarks import tables


def test_the_table_has_fifty_columns_of_several_kinds(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "BATCH", 150)
    size = tables.write_table(tmp_path / "table.csv", 400)
    dataset = read_table(tmp_path / "table.csv")
    schema = dataset.raw.take(np.arange(1)).schema
    kinds = [column.kind for column in schema]
    expected = {"number": tables.NUMBERS, "category": tables.CATEGORIES, "boolean": tables.BOOLEANS}
    assert {kind: kinds.count(kind) for kind in sorted(set(kinds))} == dict(
        sorted({**expected, "date": tables.DATES}.items())
    )
    assert (len(schema), len(dataset)) == (50, 400)
    assert (len(dataset.domains), len(dataset.classes)) == (tables.DOMAINS, tables.CLASSES)
    assert 8 * 400 * (tables.NUMBERS + tables.DATES) < size < 32 * 400 * 52


@pytest.mark.slow
def test_time_and_memory_are_measured(monkeypatch):
    monkeypatch.setattr(tables, "ROWS", 400)
    results = {result.case: result for result in tables.run(torch.device("cpu"))}
    assert results["read, audit and prepare, CPU s"].bar == tables.SECONDS
    phases = sum(results[f"{phase}, CPU s"].ratio for phase in ("read", "audit", "prepare"))
    assert results["read, audit and prepare, CPU s"].ratio == pytest.approx(phases)
    assert results["peak memory of the process, MB"].ratio > results["table, MB"].ratio > 0
    assert not any(result.error for result in results.values())


def test_a_failed_process_is_an_error(monkeypatch):
    monkeypatch.setattr(tables, "ROWS", 4)
    monkeypatch.setattr(tables, "_CHILD", "import sys; sys.exit('no memory')")
    (result,) = tables.run(torch.device("cpu"))
    assert (result.error, result.ok) == ("no memory", False)
