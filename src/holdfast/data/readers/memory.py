"""Examples that a Python user holds, as raw examples and as a data set.

n examples, d features
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Sized
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from scipy.sparse import issparse
from torch.utils.data import Dataset as TorchDataset

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs
from holdfast.data.dataset import Dataset, encode
from holdfast.data.raw import GraphList, ImageFiles, Pixels, Raw, Texts, Vectors
from holdfast.data.readers.columns import assign
from holdfast.data.readers.gathered import Gathered
from holdfast.data.readers.graphs import GraphObject, as_graphs
from holdfast.data.readers.table import is_number

ONE = "all"  # the name of the only domain, where none are told


class OddKind(BadInput, TypeError):
    """An example of a kind that nothing here takes: a wrong value, and as scikit-learn sees it a wrong type."""


def as_dataset(X: Any, y: Any, domains: Sequence[Any] | None) -> Dataset:
    """Examples with a label and a domain each; without domains all are of one."""
    raw, labels = as_raw(X), as_labels(y)
    domains = [ONE] * len(raw) if domains is None else list(domains)
    if not len(raw) == len(labels) == len(domains):
        raise BadInput(f"{len(raw)} examples, {len(labels)} labels and {len(domains)} domains: give one of each")
    _none_missing("domain", domains)
    codes, classes = encode(labels)
    where, names = encode(domains)
    return Dataset("data", raw, codes, classes, where, names)


def as_labels(y: Any) -> list[Any]:
    """(n,) labels as they were given: numbers that count classes, or names."""
    from sklearn.exceptions import DataConversionWarning

    if y is None:
        raise BadInput("fit requires y to be passed, but the target y is None: give a label for each example")
    # of a list numpy would make texts out of all, so that a missing label would not be seen
    array = np.asarray(y, dtype=object) if isinstance(y, list | tuple) else np.asarray(y)
    if array.ndim == 2 and array.shape[1] == 1:
        told = "A column-vector y was passed when a 1d array was expected: it is taken as y.ravel()"
        warnings.warn(told, DataConversionWarning, stacklevel=3)
        array = array.ravel()
    if array.ndim != 1:
        raise BadInput(f"labels are one a row, not an array of shape {array.shape}: give one label an example")
    values = list(array)
    _none_missing("label", values)
    for value in values:
        if isinstance(value, float | np.floating) and not float(value).is_integer():
            raise BadInput(
                f"Unknown label type: continuous, such as {value}: a classifier takes classes, so cut the numbers into "
                "classes or turn them into texts"
            )
    return values


def original_labels(classes: Sequence[str], labels: Sequence[Any]) -> np.ndarray:
    """Classes in the type of the labels, so that predictions come back as labels were given."""
    found = {str(value): value for value in labels}
    return np.asarray([found[name] for name in classes])


def _none_missing(what: str, values: Sequence[Any]) -> None:
    for i, value in enumerate(values):
        infinite = isinstance(value, float | np.floating) and math.isinf(value)
        if value is None or value is pd.NA or value != value or infinite:
            raise BadInput(f"the {what} of example {i + 1} is missing: fill it in or drop the example")


def as_raw(X: Any) -> Raw:
    """Raw examples of whatever the user brings: lists, arrays, a pandas Series or DataFrame, graphs as a Dataset."""
    if isinstance(X, Raw):
        return X
    if issparse(X):
        raise BadInput("sparse data is not supported: give it as a dense array, X.toarray()")
    if isinstance(X, pd.DataFrame):
        check_names(X)
    if isinstance(X, pd.Series):
        X = X.tolist()
    if isinstance(X, TorchDataset) and isinstance(X, Sized):  # torch-geometric's sets, and parts of them
        X = [X[i] for i in range(len(X))]
    if isinstance(X, Graphs | GraphObject):
        raise BadInput("examples are a list of graphs, not one graph or batch: give [graph], or batch.to_data_list()")
    if not isinstance(X, list | tuple | np.ndarray):
        X = np.asarray(X)
    if isinstance(X, np.ndarray) and X.dtype == np.uint8 and X.ndim == 4:
        return Pixels(X)
    if isinstance(X, np.ndarray) and X.dtype.kind in "OUS":
        X = X.tolist()
    if isinstance(X, list | tuple) and len(X):
        if isinstance(X[0], Path):
            return ImageFiles(list(X))
        if isinstance(X[0], Graphs | GraphObject):
            return GraphList(as_graphs(X))
        if _is_text(X[0]):
            wrong = [i for i, example in enumerate(X) if not _is_text(example)]
            if wrong:
                found = f"example {wrong[0] + 1} is no text but {X[wrong[0]]!r}"
                raise BadInput(f"{found}: examples are of one kind, so fill it in or drop it")
            return Texts.of(list(X))
    return Vectors(_vectors(X))


def _vectors(X: Any) -> np.ndarray:
    """(n, d) numbers, all of them finite."""
    try:
        array = np.asarray(X)
        if not np.iscomplexobj(array):
            array = array.astype(np.float32, copy=False)
    except (TypeError, ValueError, NotImplementedError) as error:  # the last: graphs of several kinds of nodes
        known = "texts, pairs, numbers, images, paths or graphs"
        kind = OddKind if isinstance(error, TypeError) else BadInput
        told = str(error) or f"not {type(X[0]).__name__}"
        raise kind(f"examples are {known}, all of one kind: {told}") from error
    if np.iscomplexobj(array):
        raise BadInput("Complex data not supported: give real and imaginary parts as features of their own")
    if array.ndim != 2:
        raise BadInput(
            f"vectors are given as (examples, features), not as an array of shape {array.shape}. Reshape your data: "
            "X.reshape(-1, 1) where it is one feature, X.reshape(1, -1) where it is one example"
        )
    if array.shape[1] == 0:
        raise BadInput(f"examples have 0 feature(s) (shape={array.shape}) while a minimum of 1 is required.")
    if not np.isfinite(array).all():
        row, column = np.argwhere(~np.isfinite(array))[0]
        raise BadInput(f"row {row + 1}, feature {column + 1} is NaN or infinite: fill it or drop the row")
    return array


def _is_text(example: Any) -> bool:
    pair = isinstance(example, tuple | list) and len(example) == 2 and all(isinstance(part, str) for part in example)
    return isinstance(example, str) or pair


WHERE = "the DataFrame"
Source = str | Path | Dataset | pd.DataFrame  # what a Python user may give as data


def read_frame(
    frame: pd.DataFrame,
    *,
    columns: Mapping[str, str] | None = None,
    need: Collection[str] = ("label", "domain"),
) -> Dataset:
    """Every row an example; `columns` names columns by role, `need` says which roles must be there."""
    check_names(frame)
    if not len(frame):
        raise BadInput(f"{WHERE} has no rows: give it one row an example")
    try:
        table = pa.Table.from_pandas(frame.set_axis(list(map(str, frame.columns)), axis=1), preserve_index=False)
    except (pa.ArrowException, UnicodeError, OverflowError) as error:
        raise _mixed(error) from error
    numeric = {field.name for field in table.schema if pa.types.is_boolean(field.type) or is_number(field.type)}
    roles = assign(WHERE, table.schema.names, numeric=numeric, columns=columns, need=need)
    gathered = Gathered(Path(WHERE), roles, need, before=0)
    try:
        for batch in table.to_batches():
            gathered.add(batch)
    except pa.ArrowException as error:
        raise _mixed(error) from error
    given = columns or {}
    found = gathered.dataset(named_time=bool(given.get("time")), named_features="features" in given)
    return replace(found, name="data")


def _mixed(error: Exception) -> BadInput:
    told = "; ".join(map(str, error.args))[:200]
    return BadInput(f"{WHERE} has a column that is neither all numbers nor all texts ({told}): make it one of them")


def check_names(frame: pd.DataFrame) -> None:
    """One sentence where two columns are called the same."""
    twice = [name for name, count in Counter(map(str, frame.columns)).items() if count > 1]
    if twice:
        raise BadInput(f"{WHERE} has two columns called '{twice[0]}': rename one of them")
