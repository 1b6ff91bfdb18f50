"""Parse SMILES with RDKit to arrays of atom and bond categories, in several processes for many molecules.

It does not import torch: `python -m holdfast.data.readers.smiles` is a worker that reads SMILES from stdin as JSON and
writes arrays to stdout. Shapes: n molecules, a atoms and b bonds of all of them.
"""

import io
import itertools
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from holdfast.core.errors import BadInput
from holdfast.core.forking import cores, environment

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
PER_PROCESS = 4000  # molecules that are worth another process
MAX_PROCESSES = 16


class Parsed(NamedTuple):
    """Atoms and bonds of n molecules in order; molecules that are not SMILES have no atoms."""

    atom_counts: np.ndarray  # (n,)
    bond_counts: np.ndarray  # (n,)
    atoms: np.ndarray  # (a, 9) codes
    ends: np.ndarray  # (b, 2) atoms of a bond, counted within its molecule
    bonds: np.ndarray  # (b, 3) codes


def import_rdkit() -> Any:
    """Return RDKit, or raise the error that states how to install it."""
    try:
        import rdkit
        from rdkit import Chem, rdBase  # noqa: F401
    except ImportError as error:
        raise BadInput("reading SMILES needs RDKit: pip install 'holdfast[molecules]'") from error
    return rdkit


def parse_all(texts: Sequence[str]) -> Parsed:
    """Parse molecules, in one process per core and few thousand molecules."""
    count = min(MAX_PROCESSES, cores(), len(texts) // PER_PROCESS)
    if count < 2:
        return parse(texts)
    bounds = [len(texts) * i // count for i in range(count + 1)]
    with ThreadPoolExecutor(count) as pool:
        parsed = list(pool.map(_parse_in_process, [list(texts[a:b]) for a, b in itertools.pairwise(bounds)]))
    return Parsed(*(np.concatenate(arrays) for arrays in zip(*parsed, strict=True)))


def _parse_in_process(texts: list[str]) -> Parsed:
    command = [sys.executable, "-m", "holdfast.data.readers.smiles"]
    done = subprocess.run(command, input=json.dumps(texts).encode(), capture_output=True, env=environment(1))
    if done.returncode:  # it died, for example for lack of memory
        return parse(texts)
    with np.load(io.BytesIO(done.stdout), allow_pickle=False) as arrays:
        return Parsed(*(arrays[name] for name in Parsed._fields))


def parse(texts: Sequence[str]) -> Parsed:
    """Parse molecules in this process."""
    rdkit = import_rdkit()
    atoms, bonds = _Kinds("atom"), _Kinds("bond")
    ends: list[int] = []
    sizes: list[int] = []
    with rdkit.rdBase.BlockLogs():  # the caller reports invalid SMILES
        for text in texts:
            molecule = parse_molecule(rdkit.Chem, text)
            if molecule is None:
                sizes += (0, 0)
                continue
            atom_count, bond_count = molecule.GetNumAtoms(), molecule.GetNumBonds()
            sizes += (atom_count, bond_count)
            chiral, stereo = "@" in text, "/" in text or "\\" in text  # these features are slow to read
            for i in range(atom_count):  # several times as fast as RDKit's iterators
                atom = molecule.GetAtomWithIdx(i)
                atoms.add((
                    atom.GetAtomicNum(), atom.GetChiralTag() if chiral else ATOM["chirality"][0],
                    atom.GetTotalDegree(), atom.GetFormalCharge(), atom.GetTotalNumHs(),
                    atom.GetNumRadicalElectrons(), atom.GetHybridization(), atom.GetIsAromatic(), atom.IsInRing(),
                ))  # fmt: skip
            for i in range(bond_count):
                bond = molecule.GetBondWithIdx(i)
                mark = bond.GetStereo() if stereo else BOND["stereo"][0]
                bonds.add((bond.GetBondType(), mark, bond.GetIsConjugated()))
                ends += (bond.GetBeginAtomIdx(), bond.GetEndAtomIdx())
    counts = np.array(sizes, dtype=np.int64).reshape(-1, 2)
    return Parsed(
        counts[:, 0], counts[:, 1], atoms.table(), np.array(ends, dtype=np.int32).reshape(-1, 2), bonds.table()
    )


class _Kinds:
    """Kinds of atoms or bonds, of which molecules have few: their features are encoded once per kind."""

    def __init__(self, name: str) -> None:
        self.codes = _CODES[name]
        self.index: dict[tuple[Any, ...], int] = {}
        self.rows: list[int] = []

    def add(self, features: tuple[Any, ...]) -> None:
        self.rows.append(self.index.setdefault(features, len(self.index)))

    def table(self) -> np.ndarray:
        """(rows, features) codes; RDKit's enums are looked up by name."""
        kinds = [
            [codes.get(getattr(value, "name", value), len(codes)) for value, codes in zip(key, self.codes, strict=True)]
            for key in self.index
        ]
        encoded = np.array(kinds, dtype=np.uint8).reshape(-1, len(self.codes))
        return encoded[np.array(self.rows, dtype=np.int64)]


def parse_molecule(chem: Any, text: str) -> Any:
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


if __name__ == "__main__":
    output = io.BytesIO()
    np.savez(output, allow_pickle=False, **parse(json.loads(sys.stdin.buffer.read()))._asdict())
    sys.stdout.buffer.write(output.getvalue())
