"""Benchmark `simple`: CPU time of all simple baselines of a comparison, relative to twenty lines of scikit-learn.

Both leave out each domain in turn, in one process and with one thread. The lines fit TF-IDF of words and logistic
regression to texts, and gradient boosting to tables.
"""

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
import pandas as pd
import torch
from threadpoolctl import threadpool_limits

from lab.benchmarks.harness import Result, attempt, one_thread, report_time

ROWS = (3_000, 22_000, 50_000)
DOMAINS, CLASSES = 5, 3
WORDS, LENGTH = 20_000, 18  # different words, and mean words of a text
NUMBERS, CATEGORIES = 8, 6  # columns of a table
TARGET = 1.0


def run(device: torch.device) -> list[Result]:
    """Measure texts and tables of each size once; CPU times of seconds vary little."""
    results = []
    with one_thread(), threadpool_limits(1):
        baselines_seconds(table_rows(200), "boosting")  # imports
        reference_seconds(table_rows(200))
        for rows in ROWS:
            for kind, make in (("texts", text_rows), ("tables", table_rows)):
                data = make(rows)
                results.append(attempt(f"{kind}, {rows:,} rows", lambda data=data: ratio(data), bar=TARGET))
    return results


def ratio(data: pd.DataFrame) -> float:
    """Return the CPU time of the baselines, divided by that of scikit-learn."""
    own, reference = baselines_seconds(data), reference_seconds(data)
    report_time("simple baselines, CPU", own)
    report_time("scikit-learn, CPU", reference)
    return own / reference


def text_rows(rows: int) -> pd.DataFrame:
    """Return texts with words of Zipf frequencies; some words are more frequent in one class or domain."""
    rng = np.random.default_rng(0)
    names = np.array(["".join(rng.choice(list(ascii_lowercase), size=int(rng.integers(3, 10)))) for _ in range(WORDS)])
    frequency = 1 / np.arange(1, WORDS + 1)
    y, domain = rng.integers(CLASSES, size=rows), rng.integers(DOMAINS, size=rows)
    texts = np.empty(rows, dtype=object)
    for label in range(CLASSES):
        for place in range(DOMAINS):
            at = np.flatnonzero((y == label) & (domain == place))
            weight = frequency * np.where(np.arange(WORDS) % 40 == label, 4, 1)
            weight = weight * np.where(np.arange(WORDS) % 40 == 10 + place, 4, 1)
            sizes = 3 + rng.poisson(LENGTH - 3, size=len(at))
            drawn = names[rng.choice(WORDS, size=int(sizes.sum()), p=weight / weight.sum())]
            for row, words in zip(at, np.split(drawn, sizes.cumsum()[:-1]), strict=True):
                texts[row] = " ".join(words)
    return pd.DataFrame({"text": texts, **_names(y, domain)})


def table_rows(rows: int) -> pd.DataFrame:
    """Return numbers and categories of which half depend on the class."""
    rng = np.random.default_rng(0)
    y, domain = rng.integers(CLASSES, size=rows), rng.integers(DOMAINS, size=rows)
    columns: dict[str, Any] = {}
    for i in range(NUMBERS):
        columns[f"number{i}"] = rng.normal(size=rows) + (0.7 * y if i % 2 else 0.3 * domain)
    for i in range(CATEGORIES):
        codes = rng.integers(6 + 4 * i, size=rows) + (y if i % 2 else 0)
        columns[f"category{i}"] = np.array([f"value {j}" for j in range(60)])[codes]
    return pd.DataFrame({**columns, **_names(y, domain)})


def _names(y: np.ndarray, domain: np.ndarray) -> dict[str, list[str]]:
    return {"label": [f"class {label}" for label in y], "domain": [f"domain {place}" for place in domain]}


def baselines_seconds(data: pd.DataFrame, only: str = "") -> float:
    """Return the CPU time of all runs of the simple baselines of a comparison, one seed, including preparation."""
    from holdfast.train.resolve import baseline_specs
    from holdfast.train.run import train_and_save
    from holdfast.train.settings import make_spec
    from holdfast.train.training_data import training_data
    from holdfast.train.workspace import Workspace

    encoder = "bilstm" if "text" in data else "tabular"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        data.to_parquet(folder / "data.parquet")

        def runs() -> None:
            dataset = training_data(folder / "data.parquet")
            workspace = Workspace(dataset, out=folder / "runs", cache=folder / "cache")
            base = make_spec(dataset, method="erm", settings={"plan": "leave-one-out"}, encoder=encoder)
            for spec in baseline_specs(base, dataset, [0]):
                for episode in workspace.episodes(spec):
                    if only in spec.method:
                        train_and_save(spec, episode, workspace)

        return _cpu_seconds(runs)


def reference_seconds(data: pd.DataFrame) -> float:
    """Return the CPU time of scikit-learn on the same rows and domains."""
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import LeaveOneGroupOut, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OrdinalEncoder

    if "text" in data:
        x: Any = data["text"].to_numpy()
        vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
        model = make_pipeline(vectors, LogisticRegression(max_iter=1000))
    else:
        x = data.drop(columns=["label", "domain"])
        codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
        encode = make_column_transformer((codes, make_column_selector("category")), remainder="passthrough")
        model = make_pipeline(encode, HistGradientBoostingClassifier(random_state=0))
    split = LeaveOneGroupOut()
    return _cpu_seconds(lambda: cross_val_score(model, x, data["label"], groups=data["domain"], cv=split))


def _cpu_seconds(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start
