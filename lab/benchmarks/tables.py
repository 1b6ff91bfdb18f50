"""Benchmark `tables`: read, audit and prepare a large table with columns of several kinds, within time and memory."""

import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from pyarrow import csv

from holdfast.train.measure import process_peak
from lab.benchmarks.harness import Result

ROWS = 1_000_000
NUMBERS, CATEGORIES, BOOLEANS, DATES = 28, 14, 4, 4  # columns; half of the numbers and categories have missing values
DOMAINS, CLASSES = 4, 3
BATCH = 50_000  # rows that are written at a time
GAP = 0.1  # share of missing values
SECONDS, MEMORY = 180.0, 4.0  # targets: time, and peak memory relative to the table
_CHILD = "import sys; from lab.benchmarks.tables import measure; measure(sys.argv[1])"


def run(device: torch.device) -> list[Result]:
    """Measure the CPU time of one thread and the peak memory of another process, less its memory after all imports.

    The memory of the table is that of its values in Arrow: 8 bytes per number or date, and the characters of names.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        size = write_table(path, ROWS)
        environment = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")}
        command = [sys.executable, "-c", _CHILD, str(path)]
        ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    if ran.returncode:
        message = ran.stderr.strip().splitlines()[-1][:400] if ran.stderr.strip() else f"exit code {ran.returncode}"
        return [Result("read, audit and prepare, CPU s", float("nan"), bar=SECONDS, error=message)]
    measured = json.loads(ran.stdout.splitlines()[-1])
    phases = ("read", "audit", "prepare")
    return [
        Result("read, audit and prepare, CPU s", sum(measured[phase] for phase in phases), bar=SECONDS),
        Result("peak memory / table", (measured["peak"] - measured["before"]) / size, bar=MEMORY),
        *(Result(f"{phase}, CPU s", measured[phase], bar=None) for phase in phases),
        Result("elapsed, s", measured["elapsed"], bar=None),
        Result("table, MB", size / 1e6, bar=None),
        Result("peak memory of the process, MB", measured["peak"] / 1e6, bar=None),
    ]


def write_table(path: Path, rows: int) -> int:
    """Write a csv file with random columns, a label and a domain; return the bytes of its columns in memory."""
    rng, size = np.random.default_rng(0), 0
    columns = _batch(rng, 1).schema
    with csv.CSVWriter(path, columns) as writer:
        for start in range(0, rows, BATCH):
            batch = _batch(rng, min(BATCH, rows - start))
            size += batch.nbytes
            writer.write_table(batch)
    return size


def _batch(rng: np.random.Generator, rows: int) -> pa.Table:
    """Return random rows: numbers and categories depend on the domain or on the class in some columns."""
    domain, y = rng.integers(DOMAINS, size=rows), rng.integers(CLASSES, size=rows)
    columns: dict[str, pa.Array] = {}
    for i in range(NUMBERS):
        values = rng.normal(size=rows) + (domain if i % 4 == 0 else y if i % 4 == 1 else 0)
        columns[f"number{i}"] = pa.array(values.round(4), mask=rng.random(rows) < GAP if i % 2 else None)
    for i in range(CATEGORIES):
        names = pa.array([f"value {j}" for j in range(5 * (i + 1))])
        codes = rng.integers(len(names), size=rows) // (1 + domain if i % 3 == 0 else 1)
        columns[f"category{i}"] = names.take(pa.array(codes, mask=rng.random(rows) < GAP if i % 2 else None))
    for i in range(BOOLEANS):
        columns[f"flag{i}"] = pa.array(rng.random(rows) < 0.5)
    for i in range(DATES):
        days = np.datetime64("2020-01-01") + rng.integers(1500, size=rows)
        columns[f"date{i}"] = pa.array(days.astype("datetime64[s]"))
    columns["label"] = pa.array([f"class {j}" for j in range(CLASSES)]).take(pa.array(y))
    columns["domain"] = pa.array([f"domain {j}" for j in range(DOMAINS)]).take(pa.array(domain))
    return pa.table(columns)


def measure(path: str) -> dict[str, float]:
    """Read, audit and prepare a table in this process, print seconds and bytes as JSON, and return them."""
    from holdfast.auditing.audit import audit
    from holdfast.data.batches import prepare
    from holdfast.nn.backbones.tabular import Tabular
    from holdfast.train.training_data import training_data

    measured, began = {"before": float(_memory())}, time.perf_counter()

    @contextmanager
    def timed(phase: str) -> Iterator[None]:
        start = time.process_time()
        yield
        measured[phase] = time.process_time() - start

    with timed("read"):
        dataset = training_data(path)
    with timed("audit"):
        audit(dataset)
    with timed("prepare"):
        training = np.flatnonzero(dataset.domain > 0)  # the first domain is left out
        encoder = Tabular.build(lambda: dataset.raw.take(training))
        assert len(prepare(dataset.raw, encoder.prepare)) == len(dataset)
    measured["elapsed"] = time.perf_counter() - began
    measured["peak"] = process_peak() * 2**20
    sys.stdout.write(json.dumps(measured) + "\n")
    return measured


def _memory() -> int:
    """Return the resident memory of this process in bytes; its peak so far where the system does not report it."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * mmap.PAGESIZE
    return int(process_peak() * 2**20)
