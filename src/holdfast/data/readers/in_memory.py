"""Convert in-memory examples (lists, arrays, DataFrames, graphs) to raw examples and data sets."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from scipy.sparse import issparse
from torch.utils.data import Dataset as TorchDataset

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs
from holdfast.core.table import Schema
from holdfast.data.dataset import Dataset, encode
from holdfast.data.raw import GraphList, ImageFiles, Pixels, Raw, Texts, Vectors
from holdfast.data.readers.columns import DEFAULT, ReadOptions, Roles
from holdfast.data.readers.forms import Plan, default_form
from holdfast.data.readers.graphs import GraphObject, as_graphs
from holdfast.data.readers.numbers import infinite_cell
from holdfast.data.readers.sources import OnInvalid, TableSource, Types
from holdfast.data.readers.tables import read_planned, read_rows

ONE_DOMAIN = "all"  # name of the domain if none are passed
FRAME = "the DataFrame"
Source = str | Path | Dataset | pd.DataFrame | pa.Table  # what a Python user may pass as data, or a polars frame


class UnsupportedType(BadInput, TypeError):
    """An example of an unsupported type; scikit-learn expects a TypeError for it."""


def as_dataset(X: Any, y: Any, domains: Sequence[Any] | None) -> Dataset:
    """Build a data set from examples with one label and one domain each; without domains there is only one."""
    labels = as_labels(y)
    raw, columns, domain, names = _as_examples(X, len(labels), domains, "label")
    codes, classes = encode(labels)
    return Dataset("data", raw, codes, classes, domain, names, columns=columns)


def as_numeric_dataset(X: Any, y: Any, domains: Sequence[Any] | None) -> Dataset:
    """Build a data set from examples with one number and one domain each; without domains there is only one."""
    targets = _as_numbers(y)
    raw, columns, domain, names = _as_examples(X, len(targets), domains, "number")
    codes = np.zeros(len(raw), dtype=np.int64)
    return Dataset("data", raw, codes, (), domain, names, targets=targets, task="regress", columns=columns)


def _as_examples(
    X: Any, count: int, domains: Sequence[Any] | None, target: str
) -> tuple[Raw, tuple[str, ...] | None, np.ndarray, tuple[str, ...]]:
    """Return examples, names of their columns, and domains; raise unless there are `count` of each."""
    X, columns = as_frame(X), None
    if is_table(X):
        table = read_inputs(X)
        X, columns = table.raw, table.columns
    raw = as_raw(X)
    domains = [ONE_DOMAIN] * len(raw) if domains is None else list(domains)
    if not len(raw) == count == len(domains):
        counts = f"{len(raw)} examples, {count} {target}s and {len(domains)} domains"
        raise BadInput(f"{counts}: pass one {target} and one domain per example")
    _check_present("domain", domains)
    return raw, columns, *encode(domains)


def _as_numbers(y: Any) -> np.ndarray:
    """Return targets (n,) as float64."""
    if y is None:
        raise BadInput("fit requires y to be passed, but the target y is None: pass one number per example")
    try:
        array = np.asarray(y)
        array = array if np.iscomplexobj(array) else array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise BadInput(f"y must contain numbers ({error}): use DomainClassifier for classes") from error
    if np.iscomplexobj(array):
        raise BadInput("Complex data not supported: pass real numbers as y")
    array = _as_column(array)
    if cell := infinite_cell(array[:, None]):
        raise BadInput(f"Input y contains NaN or infinity in row {cell[0]}: fill it in or drop the example")
    return array


def _as_column(array: np.ndarray) -> np.ndarray:
    """Return labels (n,), with a warning if they are a single column."""
    from sklearn.utils.validation import column_or_1d  # slow to import

    try:
        return column_or_1d(array, warn=True)
    except ValueError as error:
        raise BadInput(f"pass one label per example: {error}") from error


def as_labels(y: Any) -> list[Any]:
    """Return labels (n,) with their types: integers or names of classes."""
    if y is None:
        raise BadInput("fit requires y to be passed, but the target y is None: pass one label per example")
    # numpy would convert a list with missing labels to texts
    array = np.asarray(y, dtype=object) if isinstance(y, list | tuple) else np.asarray(y)
    values = list(_as_column(array))
    _check_present("label", values)
    for value in values:
        if isinstance(value, float | np.floating) and not float(value).is_integer():
            fix = "bin the numbers into classes or convert them to texts"
            raise BadInput(f"Unknown label type: continuous, such as {value}: {fix}")
    return values


def original_labels(classes: Sequence[str], labels: Sequence[Any]) -> np.ndarray:
    """Return the classes with the type of the labels, so that predictions have the same type."""
    by_name = {str(value): value for value in labels}
    return np.asarray([by_name[name] for name in classes])


def _check_present(what: str, values: Sequence[Any]) -> None:
    for i, value in enumerate(values):
        infinite = isinstance(value, float | np.floating) and math.isinf(value)
        if value is None or value is pd.NA or value != value or infinite:
            raise BadInput(f"the {what} of example {i + 1} is missing: fill it in or drop the example")


class Frame(TableSource):
    """The rows of a DataFrame; paths of images are relative to `folder`, by default the current one."""

    def __init__(
        self, frame: pd.DataFrame, where: str = FRAME, *, name: str = "data", folder: Path | None = None,
        columns: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.where, self.name, self.folder = where, name, folder
        _check_names(frame, where)
        frame = frame.set_axis(list(map(str, frame.columns)), axis=1)
        if missing := [name for name in columns if name not in frame.columns]:
            raise BadInput(f"{where} lacks the column '{missing[0]}' of the model: rename or add columns")
        with self.explained():
            self.table = pa.Table.from_pandas(frame[list(columns)] if columns else frame, preserve_index=False)

    def _schema(self) -> pa.Schema:
        return self.table.schema

    def batches(self, types: Types, on_invalid: OnInvalid | None = None) -> Iterator[pa.RecordBatch]:
        """Yield all columns in their own types."""
        yield from self.table.to_batches()

    def explain(self, error: BaseException, types: Types | None = None) -> BadInput:
        reason = "; ".join(map(str, error.args))[:200]
        return BadInput(f"{self.where} has a column that is neither numbers nor texts ({reason}): convert it")


def read_inputs(frame: pd.DataFrame, schema: Schema = (), text: str | None = None) -> Dataset:
    """Read all columns of a DataFrame as inputs; `schema` and `text` are the columns of a model."""
    names = [*(column.name for column in schema), *([text] if text else [])]
    source = Frame(frame, name=FRAME, columns=names)
    kinds = source.kinds()
    if unknown := [name for name, kind in kinds.items() if not kind]:
        raise BadInput(f"{FRAME}: column '{unknown[0]}' is neither numbers nor texts: convert or drop it")
    kinds |= {column.name: column.kind for column in schema} | ({text: "text"} if text else {})
    trained = {column.name: default_form(column.kind) for column in schema}
    return read_planned(source, Plan(Roles((), kinds, chosen=names), trained=trained), {})


def as_frame(X: Any) -> Any:
    """Return tables of pyarrow, polars and Hugging Face datasets as DataFrames, and other values as they are."""
    package = type(X).__module__.partition(".")[0]
    other = package == "polars" or (package == "datasets" and type(X).__name__ == "Dataset")
    return X.to_pandas() if other or isinstance(X, pa.Table) else X


def is_table(X: Any) -> bool:
    """Whether X is a DataFrame, except for complete numbers and for two columns of texts."""
    if not isinstance(X, pd.DataFrame) or not len(X.columns):
        return False
    if all(pd.api.types.is_numeric_dtype(kind) for kind in X.dtypes):
        return bool(X.isna().any(axis=None))
    return len(X.columns) != 2 or not X.map(lambda value: isinstance(value, str)).all(axis=None)


def as_raw(X: Any) -> Raw:
    """Convert lists, arrays, a pandas Series or DataFrame, or a Dataset of graphs to raw examples."""
    X = as_frame(X)
    if is_table(X):
        return read_inputs(X).raw
    if isinstance(X, Raw):
        return X
    if issparse(X):
        raise BadInput("sparse data is not supported: pass a dense array, X.toarray()")
    if isinstance(X, pd.DataFrame):
        _check_names(X)
    if isinstance(X, pd.Series):
        X = X.tolist()
    if isinstance(X, TorchDataset) and isinstance(X, Sized):  # torch-geometric data sets and subsets
        X = [X[i] for i in range(len(X))]
    if isinstance(X, Graphs | GraphObject):
        raise BadInput("examples must be a list of graphs, got one graph: pass [graph] or batch.to_data_list()")
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
            other = next((i for i, example in enumerate(X) if not _is_text(example)), None)
            if other is not None:
                raise BadInput(f"example {other + 1} is {X[other]!r}, expected a text: fill it in or drop it")
            return Texts.of(list(X))
    return Vectors(_as_vectors(X))


def _as_vectors(X: Any) -> np.ndarray:
    """Convert to (n, d) finite numbers."""
    try:
        array = np.asarray(X)
        if not np.iscomplexobj(array):
            array = array.astype(np.float32, copy=False)
    except (TypeError, ValueError, NotImplementedError) as error:  # the last one for heterogeneous graphs
        kind = UnsupportedType if isinstance(error, TypeError) else BadInput
        reason = str(error) or f"not {type(X[0]).__name__}"
        raise kind(f"examples must be all texts, pairs, numbers, images, paths or graphs: {reason}") from error
    if np.iscomplexobj(array):
        raise BadInput("Complex data not supported: pass real and imaginary parts as separate features")
    if array.ndim != 2:
        fix = "Reshape your data: X.reshape(-1, 1) for a single feature, X.reshape(1, -1) for a single example"
        raise BadInput(f"vectors have the shape {array.shape}, expected (examples, features). {fix}")
    if array.shape[1] == 0:
        raise BadInput(f"examples have 0 feature(s) (shape={array.shape}) while a minimum of 1 is required.")
    if cell := infinite_cell(array):
        raise BadInput(f"row {cell[0]}, feature {cell[1]} is NaN or infinite: fill it in or drop the row")
    return array


def _is_text(example: Any) -> bool:
    pair = isinstance(example, tuple | list) and len(example) == 2 and all(isinstance(text, str) for text in example)
    return isinstance(example, str) or pair


def read_frame(
    frame: pd.DataFrame, options: ReadOptions = DEFAULT, *, where: str = FRAME, name: str = "data",
    folder: Path | None = None,
) -> Dataset:  # fmt: skip
    """Read one example per row; `where` names the data in messages.

    Paths of images are relative to `folder`, by default the current one.
    """
    frame = as_frame(frame)
    if not isinstance(frame, pd.DataFrame):
        kinds = "a path, the name of a data set or a Dataset or a DataFrame"
        raise BadInput(f"data must be {kinds}, got a {type(frame).__name__}: write it to a file")
    if not len(frame):
        _check_names(frame, where)
        raise BadInput(f"{where} has no rows: pass one row per example")
    (dataset,) = read_rows(Frame(frame, where, name=name, folder=folder), options)
    return dataset


def _check_names(frame: pd.DataFrame, where: str = FRAME) -> None:
    duplicates = [name for name, count in Counter(map(str, frame.columns)).items() if count > 1]
    if duplicates:
        raise BadInput(f"{where} has two columns named '{duplicates[0]}': rename one of them")
