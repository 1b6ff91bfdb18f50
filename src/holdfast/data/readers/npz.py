"""Read arrays in a .npz file: vectors (n, d), or images (n, 3, h, w), (n, h, w, 3) or (n, h, w)."""

import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from holdfast.core.errors import BadInput, check_known
from holdfast.core.files import open_limit
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Pixels, Raw, Vectors
from holdfast.data.readers.codes import CodeColumn, coded_dataset, times
from holdfast.data.readers.columns import DEFAULT, SYNONYMS, ReadOptions, find, listed
from holdfast.data.readers.numbers import infinite_cell

_ROLES = {
    "features": ("x", "features", "data", "images", "inputs", "embeddings"),
    "label": ("y", "targets", *SYNONYMS["label"]),
    "domain": ("d", "envs", "environments", "groups", *SYNONYMS["domain"]),
    "split": SYNONYMS["split"],
    "time": SYNONYMS["time"],
    "id": ("ids", *SYNONYMS["id"]),
}
DAMAGED_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, UnicodeDecodeError, NotImplementedError, RuntimeError, OSError)
MIN_LIMIT = 1 << 30  # bytes that any archive may unpack to
MAX_RATIO = 200  # beyond that, the maximum compression ratio: real arrays and texts compress less
MAX_MEMBERS = 1_000_000


def read_arrays(path: Path, options: ReadOptions = DEFAULT) -> Dataset:
    """Read a .npz file, whose arrays are the columns."""
    need = options.need
    arrays = _load(path, options.columns or {}, need)
    raw = _raw(path, arrays["features"])
    for role, values in arrays.items():
        if len(values) != len(raw):
            raise BadInput(f"{path}: the inputs have {len(raw)} rows but the {role} array has {len(values)}")
    coded = {role: _codes(path, role, arrays, need) for role in ("label", "domain", "split") if role in arrays}
    time = times(_arrow(path, "time", arrays["time"])) if "time" in arrays else None
    if "time" in arrays and time is None:
        raise BadInput(f"{path}: the time array must hold numbers or dates without missing values")
    ids = [str(i) for i in arrays["id"].tolist()] if "id" in arrays else None
    return coded_dataset(path.stem, raw, coded, where=str(path), ids=ids, time=time)


@contextmanager
def open_arrays(path: Path) -> Iterator[Mapping[str, np.ndarray]]:
    """Open a .npz file, whose arrays are read on access; what is wrong with the file raises BadInput."""
    try:
        check_zip(path, fix="write it with numpy.savez_compressed")
        # opened here, since numpy does not close a damaged file
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            yield file
    except BadInput:
        raise
    except (*DAMAGED_ZIP, ValueError, KeyError, MemoryError) as error:
        if limited := open_limit(error):
            raise limited from error
        if "allow_pickle" in str(error):
            fix = "save plain arrays, such as numpy.asarray(names, dtype=str)"
            raise BadInput(f"{path} holds Python objects, which are never unpickled: {fix}") from error
        raise BadInput(f"{path} is damaged or not a .npz file: {' '.join(str(error).split())[:200]}") from error


def _load(path: Path, columns: Mapping[str, str], need: Collection[str]) -> dict[str, np.ndarray]:
    """Return the array of each role that is present."""
    for key in columns:
        check_known("key of --column for arrays", key, _ROLES)
    arrays: dict[str, np.ndarray] = {}
    with open_arrays(path) as file:
        names = list(file)
        for role, wanted in _ROLES.items():
            named = columns.get(role)
            name = named if named in names else find(names, [named.lower()] if named else wanted)
            if name is not None and named != "":
                arrays[role] = file[name]
                if not isinstance(arrays[role], np.ndarray):  # numpy returns the bytes of other files
                    raise ValueError(f"'{name}' is not an array")
            elif named or role == "features" or role in need:
                array, fix = f"array{f' {named!r}' if named else ''}", f"name it with --column {role}=NAME"
                raise BadInput(f"{path} has no {role} {array}: it has {listed(names)}; {fix}")
    return arrays


def _raw(path: Path, x: np.ndarray) -> Raw:
    if not len(np.atleast_1d(x)):
        raise BadInput(f"{path}: the input array has no rows")
    if x.ndim == 2 and x.dtype.kind in "fiub":
        return Vectors(_finite(path, x))
    if x.ndim in (3, 4):
        return Pixels(_pixels(path, x))
    expected = "numbers (n, d), or uint8 images (n, 3, h, w), (n, h, w, 3) or (n, h, w)"
    raise BadInput(f"{path}: the input array is {x.dtype} of shape {x.shape}: expected {expected}")


def _finite(path: Path, x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # overflow is reported below
        data = x.astype(np.float32, copy=False)
    if cell := infinite_cell(data):
        row, column = cell
        place = f"row {row}, column {column} of the input array is {x[row - 1, column - 1]}"
        raise BadInput(f"{path}: {place}: features must be finite numbers")
    return data


def _pixels(path: Path, x: np.ndarray) -> np.ndarray:
    """Convert grey or colour images with channels first or last to (n, 3, h, w)."""
    if x.dtype != np.uint8:
        raise BadInput(f"{path}: images must be uint8 from 0 to 255, got {x.dtype}: scale and convert them")
    if x.ndim == 3:
        x = x[:, None]
    elif x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    if x.shape[1] not in (1, 3) or 0 in x.shape:
        raise BadInput(f"{path}: images of shape {x.shape} have no axis of 3 colours: expected (n, 3, h, w)")
    return x if x.shape[1] == 3 else x.repeat(3, axis=1)


def _arrow(path: Path, role: str, values: np.ndarray) -> pa.Array:
    if values.ndim != 1:
        raise BadInput(f"{path}: the {role} array has shape {values.shape}, expected (n,)")
    if values.dtype.kind == "M":
        values = values.astype("datetime64[us]")
    try:
        return pa.array(values.tolist() if values.dtype.kind in "SU" else values)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: the {role} array is {values.dtype}: expected numbers or texts") from error


def _codes(path: Path, role: str, arrays: Mapping[str, np.ndarray], need: Collection[str]) -> CodeColumn:
    column = CodeColumn()
    try:
        missing = column.add(_arrow(path, role, arrays[role]), numbers=role == "label") < 0
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: the {role} array holds bytes that are not UTF-8: save it as str") from error
    if missing.any() and (role in need or role == "domain"):
        raise BadInput(f"{path}: row {int(missing.argmax()) + 1} of the {role} array has no {role}")
    return column


def check_zip(path: Path, *, minimum: int | None = None, fix: str = "pack it again") -> None:
    """Raise for an archive that would fill the memory; members cannot be read beyond the sizes they declare.

    An archive may unpack to `minimum` bytes (default: `MIN_LIMIT`), whatever its size.
    """
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as opened:
            members = opened.infolist()
    except (*DAMAGED_ZIP, ValueError) as error:
        kind = ".npz file" if path.suffix == ".npz" else "zip"
        raise open_limit(error) or BadInput(f"{path} is damaged or not a {kind} ({error}): {fix}") from error
    unpacked, packed = sum(member.file_size for member in members), path.stat().st_size
    if unpacked > max(MIN_LIMIT if minimum is None else minimum, MAX_RATIO * packed) or len(members) > MAX_MEMBERS:
        sizes = f"from {packed / 2**20:.1f} MiB to {unpacked / 2**30:.1f} GiB in {len(members)} files"
        raise BadInput(
            f"{path} would unpack {sizes} and fill the memory: if you trust it, unpack it into smaller files"
        )
