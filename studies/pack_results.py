"""Pack the records of finished studies: every folder `X/records` below results/ becomes one file `X.jsonl.gz`.

Run `python -m studies.pack_results [FOLDER]` from the repository root. `holdfast report results/mil/amazon.jsonl.gz`
and the studies read packed files directly. Single files are removed once the packed copy was read and compared.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from holdfast.record import PACKED, load, pack

RESULTS = Path(__file__).parents[1] / "results"


def pack_all(root: Path) -> dict[Path, int]:
    """Pack every study below a folder and return the number of records per packed file."""
    counts = {}
    for records in sorted(root.rglob("records")):
        study = records.parent
        packed = study.with_name(study.name + PACKED)
        if packed.exists():
            raise FileExistsError(f"{packed} exists: remove it, or move the new records to another folder")
        counts[packed] = pack(study, packed)
        if list(load(packed)) != list(load(study)):
            raise ValueError(f"{packed} does not hold the records of {study}")
        shutil.rmtree(records)
        if not any(study.iterdir()):
            study.rmdir()
    return counts


if __name__ == "__main__":
    for packed, count in pack_all(Path(sys.argv[1]) if sys.argv[1:] else RESULTS).items():
        sys.stdout.write(f"{packed}: {count} records\n")
