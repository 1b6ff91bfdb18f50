"""Molecules cut by their scaffold: those with common ones train, those with rare ones choose and are scored.

n molecules
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.core.errors import BadInput
from holdfast.data.domain import Dataset
from holdfast.data.molecules import Molecules, parsed, rdkit
from holdfast.data.raw import Raw, Rows

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
    if isinstance(raw, Rows):
        texts = _smiles(raw.base)
        return None if texts is None else [texts[i] for i in raw.rows]
    return raw.smiles if isinstance(raw, Molecules) else None
