"""Read molecules in SMILES as graphs with the nine atom and three bond categories of OGB; split by scaffold."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from holdfast.core.errors import BadInput
from holdfast.core.files import cache_folder
from holdfast.core.inputs import Graphs
from holdfast.core.store import PackedGraphs
from holdfast.data.cache import read_cached, write_cached
from holdfast.data.dataset import Dataset
from holdfast.data.raw import GraphList, Raw, Subset
from holdfast.data.readers import formats
from holdfast.data.readers.columns import DEFAULT, ReadOptions, find
from holdfast.data.readers.smiles import Parsed, import_rdkit, parse_all, parse_molecule
from holdfast.data.readers.tables import read_table

NAMES = ("smiles", "canonical_smiles", "mol")
TRAIN, VALID = 0.8, 0.1  # fractions of a scaffold split

CACHED = 2000  # molecules from which on the parsed arrays are stored in the cache folder
VERSION = "1"  # of the stored arrays


class Molecules(GraphList):
    """Graphs with the SMILES from which they were made, for scaffold splits."""

    def __init__(self, graphs: Sequence[Graphs], smiles: Sequence[str]) -> None:
        super().__init__(graphs)
        self.smiles = list(smiles)


def smiles_column(path: Path, columns: Mapping[str, str] | None) -> str | None:
    """Return the column of a table that holds SMILES: named by the user, or by convention if no input is named."""
    named = dict(columns or {})
    if "smiles" in named:
        return named["smiles"]
    if path.suffix.lower() not in formats.SUFFIXES or {"text", "premise", "features", "image"} & set(named):
        return None
    return find(formats.open_table(path).schema.names, NAMES)


def read_molecules(path: Path, column: str, options: ReadOptions = DEFAULT) -> Dataset:
    """Read a table with a column of SMILES as graphs; the other columns are those of any table."""
    others = {key: name for key, name in (options.columns or {}).items() if key != "smiles"}
    table = read_table(path, replace(options, columns={**others, "text": column}))
    return as_molecules(table, np.arange(len(table)), str(path))


def as_molecules(table: Dataset, rows: np.ndarray, where: str) -> Dataset:
    """Convert these rows of a data set of SMILES to graphs."""
    texts = table.raw.take(rows)
    return replace(table.subset(rows), raw=Molecules(molecules(texts, where, rows=rows + 1), texts))


def molecules(
    texts: Sequence[str], where: str = "these SMILES", *, rows: Iterable[int] | None = None
) -> PackedGraphs:  # fmt: skip
    """Return one graph per molecule with implicit hydrogens; `rows` are row numbers for error messages."""
    parsed = _cached(texts) if len(texts) >= CACHED else parse_all(texts)
    if len(invalid := np.flatnonzero(parsed.atom_counts == 0)):
        at = int(invalid[0])
        row = at + 1 if rows is None else list(rows)[at]
        raise BadInput(f"{where}, row {row}: '{texts[at][:60]}' is not a molecule in SMILES: fix or remove it")
    return _to_graphs(parsed)


def _cached(texts: Sequence[str]) -> Parsed:
    """Return the parsed molecules, read from the cache folder if they were parsed before."""
    version = import_rdkit().__version__
    sha = hashlib.sha256(f"{VERSION}/{version}".encode())
    for text in texts:
        sha.update(len(data := text.encode()).to_bytes(8, "little") + data)
    path = cache_folder() / "molecules" / f"{sha.hexdigest()[:32]}.safetensors"
    stored = read_cached(path)
    if stored.keys() >= set(Parsed._fields):
        return Parsed(*(stored[name].numpy() for name in Parsed._fields))
    parsed = parse_all(texts)
    arrays = {name: torch.from_numpy(array.copy()) for name, array in parsed._asdict().items()}
    write_cached(path, arrays, lost="parses the molecules")
    return parsed


def _to_graphs(parsed: Parsed) -> PackedGraphs:
    """Return one graph per molecule; every bond is an edge in both directions, first all forward, then all backward."""
    bonds = parsed.bond_counts.astype(np.int64)
    counts = 2 * bonds
    at = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)  # position of an edge in its molecule
    own = np.repeat(bonds, counts)
    backward = at >= own
    bond = np.repeat(np.cumsum(bonds) - bonds, counts) + at - backward * own
    ends = parsed.ends[bond]
    edges = np.where(backward[:, None], ends[:, ::-1], ends).T.astype(np.int64)  # (2, e)
    tensors = (np.ascontiguousarray(edges), parsed.bonds[bond].astype(np.int64), parsed.atom_counts.astype(np.int64))
    edges, weights, atoms = map(torch.from_numpy, tensors)
    nodes = torch.from_numpy(parsed.atoms.astype(np.int64))
    return PackedGraphs.build(nodes, edges, weights, atoms, torch.from_numpy(counts))


def by_scaffold(dataset: Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return training, validation and test rows without a common scaffold, as OGB splits.

    Groups with the same scaffold, the largest first, fill 80 % of the rows, then 10 %, then the rest.
    """
    texts = _smiles(dataset.raw)
    if texts is None:
        fix = "use a table with a column smiles, or shift=size"
        raise BadInput(f"the shift 'scaffold' applies to molecules, but {dataset.name} has no SMILES: {fix}")
    groups: dict[str, list[int]] = defaultdict(list)
    for row, scaffold in enumerate(scaffolds(texts)):
        groups[scaffold].append(row)
    split: tuple[list[int], list[int], list[int]] = ([], [], [])
    train, valid = TRAIN * len(texts), (TRAIN + VALID) * len(texts)
    for group in sorted(groups.values(), key=lambda rows: (len(rows), rows[0]), reverse=True):
        taken = len(split[0]) + len(group)
        at = 0 if taken <= train else 1 if taken + len(split[1]) <= valid else 2
        split[at].extend(group)
    first, second, third = (np.asarray(rows, dtype=np.int64) for rows in split)
    return first, second, third


def scaffolds(texts: Sequence[str]) -> list[str]:
    """Return the Bemis-Murcko scaffolds (1996) as SMILES; empty for molecules without rings."""
    rdkit = import_rdkit()
    from rdkit.Chem.Scaffolds import MurckoScaffold  # pyright: ignore[reportMissingImports]

    smiles = []
    with rdkit.rdBase.BlockLogs():
        for text in texts:
            try:
                molecule = parse_molecule(rdkit.Chem, text)
                smiles.append(MurckoScaffold.MurckoScaffoldSmiles(mol=molecule, includeChirality=True))
            except (ValueError, RuntimeError):  # RDKit has no scaffold for some molecules with unusual valences
                smiles.append("")
    return smiles


def _smiles(raw: Raw) -> list[str] | None:
    if isinstance(raw, Subset):
        texts = _smiles(raw.base)
        return None if texts is None else [texts[i] for i in raw.rows]
    return raw.smiles if isinstance(raw, Molecules) else None
