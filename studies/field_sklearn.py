"""The opponent of the field trials: a short scikit-learn script per kind of data, on the same rows and domains.

Texts get TF-IDF of words and word pairs with logistic regression, tables histogram gradient boosting, images logistic
regression on 32 x 32 pixels, vectors logistic regression, molecules counts of character sequences, and other graphs
histograms of degrees and tags with gradient boosting. All settings are the defaults of scikit-learn. One domain is left
out at a time; above 8 domains, one of five groups of domains.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from studies.field_sets import TEXT_COLUMNS, FieldSet

MOST_LEFT_OUT, FOLDS = 8, 5
SIDE = 32  # of images, in pixels
MOST_DEGREE, MOST_TAGS = 20, 50  # columns of the histograms of graphs
CATEGORIES = 200  # per column; gradient boosting takes at most 255
SMILES = "smiles"


@dataclass(frozen=True)
class Rows:
    """Examples with labels and the names of their domains."""

    inputs: Any  # frame of columns, list of texts, or (n, d)
    label: np.ndarray
    domain: np.ndarray


def read_table(path: Path, entry: FieldSet) -> pd.DataFrame:
    """Return a table with label and domain as text."""
    names = [entry.label, entry.domain]
    if path.suffix == ".parquet":
        return pd.read_parquet(path).astype(dict.fromkeys(names, str))
    return pd.read_csv(path, dtype=dict.fromkeys(names, str), low_memory=False)


def _images(path: Path) -> Rows:
    files = sorted(path.glob("*/*/*"))
    pixels = [np.asarray(Image.open(file).convert("RGB").resize((SIDE, SIDE))).ravel() / 255 for file in files]
    return Rows(
        np.stack(pixels), np.asarray([file.parts[-2] for file in files]), np.asarray([file.parts[-3] for file in files])
    )


def _graphs(path: Path) -> Rows:
    """Return histograms of tags and degrees, and the numbers of nodes and edges."""
    rows, labels, domains = [], [], []
    for file in sorted(path.glob("*.txt")):
        count, *lines = file.read_text(encoding="utf-8").splitlines()
        at = 0
        for _ in range(int(count)):
            nodes, label = lines[at].split()[:2]
            words = [line.split() for line in lines[at + 1 : at + 1 + int(nodes)]]
            at += 1 + int(nodes)
            tags, degrees = ([int(word[i]) for word in words] for i in (0, 1))
            counts = [
                np.bincount(np.minimum(values, most), minlength=most + 1)
                for values, most in ((tags, MOST_TAGS), (degrees, MOST_DEGREE))
            ]
            rows.append(np.concatenate([*counts, [len(words), sum(degrees) / 2]]))
            labels.append(label)
            domains.append(file.stem)
    return Rows(np.stack(rows), np.asarray(labels), np.asarray(domains))


def read_rows(path: Path, entry: FieldSet) -> Rows:
    """Read the file or folder of a set."""
    if entry.kind == "image":
        return _images(path)
    if path.is_dir():
        return _graphs(path)
    if path.suffix == ".npz":
        arrays = np.load(path)
        return Rows(arrays["x"], arrays["y"].astype(str), arrays["domain"].astype(str))
    frame = read_table(path, entry).dropna(subset=[entry.label, entry.domain])
    label, domain = (frame.pop(name).to_numpy(dtype=str) for name in (entry.label, entry.domain))
    inputs: Any = frame.drop(columns="id", errors="ignore")
    if entry.kind == "text":
        texts = [name for name in frame if name in ("title", *TEXT_COLUMNS)]
        inputs = frame[texts].fillna("").agg(" | ".join, axis=1).to_numpy(dtype=object)
    elif SMILES in frame:
        inputs = frame[SMILES].to_numpy(dtype=object)
    elif entry.kind == "vector":
        inputs = frame.to_numpy(dtype=np.float64)
    return Rows(inputs, label, domain)


def pipeline(entry: FieldSet, rows: Rows) -> Any:
    """Return the model for a kind of data, with the default settings of scikit-learn."""
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MaxAbsScaler, OrdinalEncoder

    if entry.kind == "text":
        return make_pipeline(
            TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True), LogisticRegression(max_iter=1000)
        )
    if entry.kind in ("image", "vector"):
        return make_pipeline(MaxAbsScaler(), LogisticRegression(max_iter=100))
    if entry.kind == "graph" and rows.inputs.ndim == 1:
        counts = TfidfVectorizer(analyzer="char", ngram_range=(1, 4), lowercase=False, min_df=2)
        return make_pipeline(counts, MaxAbsScaler(), LogisticRegression(max_iter=1000))
    trees: Any = HistGradientBoostingRegressor if entry.numbers else HistGradientBoostingClassifier
    if entry.kind == "graph":
        return trees(random_state=0)
    categories = OrdinalEncoder(
        handle_unknown="use_encoded_value", unknown_value=np.nan, encoded_missing_value=np.nan,
        max_categories=CATEGORIES,
    )  # fmt: skip
    texts = list(rows.inputs.select_dtypes(exclude="number").columns)
    columns = make_column_transformer((categories, texts), remainder="passthrough")
    return make_pipeline(columns, trees(random_state=0, categorical_features=list(range(len(texts)))))


def metrics_of(truth: np.ndarray, predicted: np.ndarray, *, numbers: bool) -> dict[str, float]:
    """Return the metrics of one domain."""
    from sklearn import metrics

    f1: Any = metrics.f1_score
    if numbers:
        return {
            "rmse": float(np.sqrt(np.mean((truth - predicted) ** 2))),
            "mae": float(np.mean(np.abs(truth - predicted))),
        }
    present = np.unique(truth)
    recalls = [float(np.mean(predicted[truth == label] == label)) for label in present]
    return {
        "accuracy": float(np.mean(truth == predicted)),
        "macro_f1": float(f1(truth, predicted, labels=present, average="macro", zero_division=0.0)),
        "balanced_accuracy": float(np.mean(recalls)),
        "mcc": float(metrics.matthews_corrcoef(truth, predicted)),
    }


def _trainable(rows: Rows, train: np.ndarray, *, numbers: bool) -> np.ndarray:
    """Return the training rows whose class has at least two rows, which early stopping of the trees needs."""
    if numbers:
        return train
    labels, counts = np.unique(rows.label[train], return_counts=True)
    return train[np.isin(rows.label[train], labels[counts > 1])]


def evaluate(path: Path, entry: FieldSet) -> dict[str, Any]:
    """Train with each domain left out; return the metrics per domain, the number of rows, and the seconds."""
    from sklearn.model_selection import GroupKFold, LeaveOneGroupOut

    start = time.perf_counter()
    rows = read_rows(path, entry)
    label = rows.label.astype(float) if entry.numbers else rows.label
    domains = np.unique(rows.domain)
    folds: Any = GroupKFold(FOLDS) if len(domains) > MOST_LEFT_OUT else LeaveOneGroupOut()
    predicted = np.empty_like(label)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of convergence, and of classes that a domain lacks
        for train, test in folds.split(label, label, rows.domain):
            train = _trainable(rows, train, numbers=entry.numbers)
            inputs = rows.inputs.iloc if isinstance(rows.inputs, pd.DataFrame) else rows.inputs
            predicted[test] = pipeline(entry, rows).fit(inputs[train], label[train]).predict(inputs[test])
        scores = {}
        for name in domains:
            mine = rows.domain == name
            values = metrics_of(label[mine], predicted[mine], numbers=entry.numbers)
            scores[str(name)] = {metric: round(value, 6) for metric, value in values.items()}
    return {
        "rows": len(label), "domains": len(domains), "classes": 0 if entry.numbers else len(np.unique(label)),
        "seconds": round(time.perf_counter() - start, 1), "scores": scores,
    }  # fmt: skip
