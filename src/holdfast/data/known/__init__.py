"""Published data sets, described by the table `sets.toml`."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any


@cache
def table() -> dict[str, dict[str, Any]]:
    """Return the rows of the table by name."""
    return tomllib.loads((Path(__file__).parent / "sets.toml").read_text(encoding="utf-8"))
