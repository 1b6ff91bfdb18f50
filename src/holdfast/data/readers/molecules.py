"""Convert molecules in SMILES to graphs with the nine atom and three bond categories of OGB; split by scaffold."""

import functools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs
from holdfast.data.dataset import Dataset
from holdfast.data.raw import GraphList, Raw, Subset
from holdfast.data.readers import formats
from holdfast.data.readers.columns import find
from holdfast.data.readers.table import read_table

NAMES = ("smiles", "canonical_smiles", "mol")
TRAIN, VALID = 0.8, 0.1  # fractions of a scaffold split

# values per feature in the order of their codes; other values get the code after the last one (Hu et al., 2020)
ATOM = {
    "number": tuple(range(1, 119)),
    "chirality": ("CHI_UNSPECIFIED", "CHI_TETRAHEDRAL_CW", "CHI_TETRAHEDRAL_CCW", "CHI_OTHER"),
    "degree": tuple(range(11)),
    "charge": tuple(range(-5, 6)),
    "hydrogens": tuple(range(9)),
    "radicals": tuple(range(5)),
    "hybridization": ("SP", "SP2", "SP3", "SP3D", "SP3D2"),
    "aromatic": (False, True),
    "ring": (False, True),
}
BOND = {
    "type": ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC"),
    "stereo": ("STEREONONE", "STEREOZ", "STEREOE", "STEREOCIS", "STEREOTRANS", "STEREOANY"),
    "conjugated": (False, True),
}
_CODES = {
    kind: [{value: i for i, value in enumerate(values)} for values in features.values()]
    for kind, features in (("atom", ATOM), ("bond", BOND))
}


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
    if path.suffix.lower() not in formats.SUFFIXES or {"text", "premise", "features"} & set(named):
        return None
    if not path.is_file() or not path.stat().st_size:
        return None  # reported by the table reader
    return find(formats.read_schema(path).names, NAMES)


def read_molecules(
    path: Path, column: str, *, columns: Mapping[str, str] | None = None, need: Collection[str] = ("label", "domain"),
    skip_bad: bool = False,
) -> Dataset:  # fmt: skip
    """Read a table with a column of SMILES as graphs; the other columns are those of any table."""
    others = {key: name for key, name in (columns or {}).items() if key != "smiles"}
    table = read_table(path, columns={**others, "text": column}, need=need, skip_bad=skip_bad)
    return as_molecules(table, np.arange(len(table)), str(path))


def as_molecules(table: Dataset, rows: np.ndarray, where: str) -> Dataset:
    """Convert these rows of a data set of SMILES to graphs."""
    texts = table.raw.take(rows)
    return replace(table.subset(rows), raw=Molecules(molecules(texts, where, rows=rows + 1), texts))


def molecules(texts: Sequence[str], where: str = "these SMILES", *, rows: Iterable[int] | None = None) -> list[Graphs]:
    """Return one graph per molecule with implicit hydrogens; `rows` are row numbers for error messages."""
    rdkit = _import_rdkit()
    graphs = []
    with rdkit.rdBase.BlockLogs():  # invalid SMILES are reported below
        for row, text in zip(rows if rows is not None else range(1, len(texts) + 1), texts, strict=True):
            molecule = _parse(rdkit.Chem, text)
            if molecule is None or not molecule.GetNumAtoms():
                raise BadInput(f"{where}, row {row}: '{text[:60]}' is not a molecule in SMILES: fix or remove it")
            graphs.append(_to_graph(molecule))
    return graphs


def _import_rdkit() -> Any:
    try:
        import rdkit
        from rdkit import Chem, rdBase  # noqa: F401
    except ImportError as error:
        raise BadInput("reading SMILES needs RDKit: pip install 'holdfast[molecules]'") from error
    return rdkit


def _parse(chem: Any, text: str) -> Any:
    """Parse SMILES; if only valences are unusual, as for metals in older sets, without checking them."""
    if (molecule := chem.MolFromSmiles(text)) is not None:
        return molecule
    if (molecule := chem.MolFromSmiles(text, sanitize=False)) is None:
        return None
    try:
        molecule.UpdatePropertyCache(strict=False)
        chem.SanitizeMol(molecule, chem.SANITIZE_ALL ^ chem.SANITIZE_PROPERTIES)
    except ValueError:  # for example rings that cannot be aromatic
        return None
    return molecule


def _to_graph(molecule: Any) -> Graphs:
    atoms, bonds, ends = [], [], []
    for atom in map(molecule.GetAtomWithIdx, range(molecule.GetNumAtoms())):
        atoms.append(_encode("atom", (
            atom.GetAtomicNum(), atom.GetChiralTag(), atom.GetTotalDegree(), atom.GetFormalCharge(),
            atom.GetTotalNumHs(), atom.GetNumRadicalElectrons(), atom.GetHybridization(), atom.GetIsAromatic(),
            atom.IsInRing(),
        )))  # fmt: skip
    for bond in map(molecule.GetBondWithIdx, range(molecule.GetNumBonds())):
        bonds.append(_encode("bond", (bond.GetBondType(), bond.GetStereo(), bond.GetIsConjugated())))
        ends.append((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()))
    edges = _table(ends, 2).T.contiguous()  # (2, e / 2); e counts bonds in both directions
    kinds = _table(bonds, len(BOND))
    both = torch.cat([edges, edges.flip(0)], dim=1)
    return Graphs.single(_table(atoms, len(ATOM)), both, torch.cat([kinds, kinds]))


@functools.cache
def _encode(kind: str, features: tuple[Any, ...]) -> tuple[int, ...]:  # cached: molecules consist of few kinds of atoms
    """Encode features; RDKit's enums are looked up by name."""
    values = (getattr(value, "name", value) for value in features)
    return tuple(table.get(value, len(table)) for value, table in zip(values, _CODES[kind], strict=True))


def _table(rows: Sequence[tuple[int, ...]], width: int) -> torch.Tensor:
    return torch.from_numpy(np.array(rows, dtype=np.int64).reshape(-1, width))


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
    rdkit = _import_rdkit()
    from rdkit.Chem.Scaffolds import MurckoScaffold  # pyright: ignore[reportMissingImports]

    smiles = []
    with rdkit.rdBase.BlockLogs():
        for text in texts:
            try:
                molecule = _parse(rdkit.Chem, text)
                smiles.append(MurckoScaffold.MurckoScaffoldSmiles(mol=molecule, includeChirality=True))
            except (ValueError, RuntimeError):  # RDKit has no scaffold for some molecules with unusual valences
                smiles.append("")
    return smiles


def _smiles(raw: Raw) -> list[str] | None:
    if isinstance(raw, Subset):
        texts = _smiles(raw.base)
        return None if texts is None else [texts[i] for i in raw.rows]
    return raw.smiles if isinstance(raw, Molecules) else None
