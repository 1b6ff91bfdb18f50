"""Check that the types of all public names are complete: python -m studies.public_types lists those that are not.

`pyright --verifytypes` takes every module without a leading underscore as public. Only its findings about names that
`holdfast` and `holdfast.nn` export, their members and the classes of Holdfast that they inherit from count here.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from studies.site import public_names

# scikit-learn has no type information, and so have the bases that come from it
UNTYPED_BASE = re.compile(r"Type of (metaclass|base class) unknown|Type of base class \"\S+Estimator\" is partially .*")


def symbols() -> list[dict[str, Any]]:
    """Return the symbols of the package, which pyright imports with the first python of PATH."""
    folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    words = [sys.executable, "-m", "pyright", "--verifytypes", "holdfast", "--ignoreexternal", "--outputjson"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    try:
        checked = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    except (json.JSONDecodeError, KeyError):
        sys.exit(f"pyright --verifytypes failed: {done.stderr.strip() or done.stdout[:500]}")
    if not checked:
        sys.exit("pyright --verifytypes does not find the package: install it with `make setup`")
    return checked


def public_paths() -> set[str]:
    """Return the full names of what is public: as exported, as defined, and the bases of classes."""
    paths = set()
    for module, names in public_names().items():
        for name in names:
            value = getattr(importlib.import_module(module), name)
            bases = value.__mro__ if isinstance(value, type) else (value,)
            paths |= {f"{module}.{name}"} | {
                f"{base.__module__}.{base.__qualname__}" for base in bases if base.__module__.startswith("holdfast.")
            }
    return paths


def incomplete(checked: Iterable[Mapping[str, Any]], paths: Iterable[str]) -> Iterator[str]:
    """Return one line per symbol under the paths whose type is not complete, with the reason."""
    public = set(paths)
    for symbol in checked:
        name = symbol["name"]
        if name not in public and name.rpartition(".")[0] not in public:
            continue
        if symbol["isTypeKnown"] and not symbol["isTypeAmbiguous"]:
            continue
        messages = [" ".join(each["message"].split()) for each in symbol["diagnostics"]]
        reasons = [text for text in messages if "ocstring" not in text and not UNTYPED_BASE.fullmatch(text)]
        if reasons or symbol["category"] != "class":
            yield f"{name}: {reasons[0] if reasons else 'part of its type is unknown'}"


def main() -> int:
    """Print the public names with incomplete types."""
    lines = list(incomplete(symbols(), public_paths()))
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.write(f"{len(lines)} public names have incomplete types\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
