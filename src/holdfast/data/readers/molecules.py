"""Molecules written as SMILES to graphs: atoms with nine and bonds with three categories, those of OGB.

v atoms, e bonds counted both ways
"""

from __future__ import annotations

import functools
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

# values of each feature in the order of their codes; what is not listed has the code after the last (Hu et al., 2020)
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
_ATOM_CODES = [{value: i for i, value in enumerate(values)} for values in ATOM.values()]
_BOND_CODES = [{value: i for i, value in enumerate(values)} for values in BOND.values()]


class Molecules(GraphList):
    """Graphs that were written as SMILES, which are kept: what they share can be told from them."""

    def __init__(self, graphs: Sequence[Graphs], smiles: Sequence[str]) -> None:
        super().__init__(graphs)
        self.smiles = list(smiles)


def smiles_column(path: Path, columns: Mapping[str, str] | None) -> str | None:
    """The column of a table that holds SMILES: named by the user, or called so where no input is named."""
    given = dict(columns or {})
    if "smiles" in given:
        return given["smiles"]
    if path.suffix.lower() not in formats.SUFFIXES or {"text", "premise", "features"} & set(given):
        return None
    if not path.is_file() or not path.stat().st_size:
        return None  # the reader of tables says what is wrong
    return find(formats.read_schema(path, formats.BLOCK).names, NAMES)


def read_molecules(
    path: Path, column: str, *, columns: Mapping[str, str] | None = None, need: Collection[str] = ("label", "domain")
) -> Dataset:
    """A table with a column of SMILES as a data set of graphs; the other columns are those of any table."""
    others = {key: name for key, name in (columns or {}).items() if key != "smiles"}
    table = read_table(path, columns={**others, "text": column}, need=need)
    return as_molecules(table, np.arange(len(table)), str(path))


def as_molecules(table: Dataset, rows: np.ndarray, where: str) -> Dataset:
    """These rows of a data set of SMILES, as graphs."""
    texts = table.raw.take(rows)
    return replace(table.subset(rows), raw=Molecules(molecules(texts, where, rows=rows + 1), texts))


def molecules(texts: Sequence[str], where: str = "these SMILES", *, rows: Iterable[int] | None = None) -> list[Graphs]:
    """One graph a molecule, hydrogens left implicit; `rows` are the numbers by which one that is wrong is named."""
    chemistry = rdkit()
    found = []
    with chemistry.rdBase.BlockLogs():  # what cannot be read is told below
        for row, text in zip(rows if rows is not None else range(1, len(texts) + 1), texts, strict=True):
            molecule = parsed(chemistry.Chem, text)
            if molecule is None or not molecule.GetNumAtoms():
                raise BadInput(f"{where}, row {row}: '{text[:60]}' is no molecule in SMILES: mend it or take it out")
            found.append(_graph(molecule))
    return found


def parsed(chem: Any, text: str) -> Any:
    """The molecule; where only its valences are unusual, as of metals in older sets, without the check of those."""
    molecule = chem.MolFromSmiles(text)
    if molecule is not None:
        return molecule
    molecule = chem.MolFromSmiles(text, sanitize=False)
    if molecule is None:
        return None
    try:
        molecule.UpdatePropertyCache(strict=False)
        chem.SanitizeMol(molecule, chem.SANITIZE_ALL ^ chem.SANITIZE_PROPERTIES)
    except ValueError:  # rings that cannot be aromatic, say
        return None
    return molecule


def _graph(molecule: Any) -> Graphs:
    atoms = [_atom(_features(atom)) for atom in map(molecule.GetAtomWithIdx, range(molecule.GetNumAtoms()))]
    bonds, ends = [], []
    for bond in map(molecule.GetBondWithIdx, range(molecule.GetNumBonds())):
        bonds.append(_bond((bond.GetBondType(), bond.GetStereo(), bond.GetIsConjugated())))
        ends.append((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()))
    edges = torch.from_numpy(np.array(ends, dtype=np.int64).reshape(-1, 2).T.copy())  # (2, e / 2)
    kinds = _table(bonds, len(BOND))
    return Graphs(
        nodes=_table(atoms, len(ATOM)),
        edges=torch.cat([edges, edges.flip(0)], dim=1),
        owner=torch.zeros(len(atoms), dtype=torch.long),
        count=1,
        weights=torch.cat([kinds, kinds]),
    )


def _features(atom: Any) -> tuple[Any, ...]:
    return (
        atom.GetAtomicNum(),
        atom.GetChiralTag(),
        atom.GetTotalDegree(),
        atom.GetFormalCharge(),
        atom.GetTotalNumHs(),
        atom.GetNumRadicalElectrons(),
        atom.GetHybridization(),
        atom.GetIsAromatic(),
        atom.IsInRing(),
    )


@functools.cache
def _atom(features: tuple[Any, ...]) -> tuple[int, ...]:
    """Few kinds of atoms make up all molecules, so each is coded once."""
    return _coded(features, _ATOM_CODES)


@functools.cache
def _bond(features: tuple[Any, ...]) -> tuple[int, ...]:
    return _coded(features, _BOND_CODES)


def _coded(features: Sequence[Any], codes: Sequence[Mapping[Any, int]]) -> tuple[int, ...]:
    """RDKit's own kinds are looked up by their names."""
    values = (getattr(value, "name", value) for value in features)
    return tuple(table.get(value, len(table)) for value, table in zip(values, codes, strict=True))


def _table(rows: Sequence[tuple[int, ...]], width: int) -> torch.Tensor:
    return torch.from_numpy(np.array(rows, dtype=np.int64).reshape(-1, width))


def rdkit() -> Any:
    try:
        import rdkit
        from rdkit import Chem, rdBase  # noqa: F401
    except ImportError as error:
        raise BadInput("reading SMILES needs RDKit: pip install 'holdfast[molecules]'") from error
    return rdkit


TRAIN, VALID = 0.8, 0.1


def by_scaffold(dataset: Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows that train, choose and are scored; no scaffold lies in two of the three.

    Groups of one scaffold, the largest first, fill eight tenths, then one, then the rest: OGB's splits are made so.
    """
    texts = _smiles(dataset.raw)
    if texts is None:
        raise BadInput(
            f"the shift 'scaffold' is one of molecules, and {dataset.name} is not made of SMILES: give a table with a "
            "column smiles, or take shift=size"
        )
    groups: dict[str, list[int]] = {}
    for row, scaffold in enumerate(scaffolds(texts)):
        groups.setdefault(scaffold, []).append(row)
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    train, valid = TRAIN * len(texts), (TRAIN + VALID) * len(texts)
    for group in sorted(groups.values(), key=lambda rows: (len(rows), rows[0]), reverse=True):
        taken = len(parts[0]) + len(group)
        at = 0 if taken <= train else 1 if taken + len(parts[1]) <= valid else 2
        parts[at].extend(group)
    first, second, third = (np.asarray(part, dtype=np.int64) for part in parts)
    return first, second, third


def scaffolds(texts: Sequence[str]) -> list[str]:
    """The rings of each molecule and what links them (Bemis & Murcko, 1996) as SMILES; without rings, nothing."""
    chemistry = rdkit()
    from rdkit.Chem.Scaffolds import MurckoScaffold  # pyright: ignore[reportMissingImports]

    found = []
    with chemistry.rdBase.BlockLogs():
        for text in texts:
            try:
                molecule = parsed(chemistry.Chem, text)
                found.append(MurckoScaffold.MurckoScaffoldSmiles(mol=molecule, includeChirality=True))
            except (ValueError, RuntimeError):  # a few with unusual valences have none that RDKit can tell
                found.append("")
    return found


def _smiles(raw: Raw) -> list[str] | None:
    if isinstance(raw, Subset):
        texts = _smiles(raw.base)
        return None if texts is None else [texts[i] for i in raw.rows]
    return raw.smiles if isinstance(raw, Molecules) else None
