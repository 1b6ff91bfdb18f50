"""Whose a folder is: what another experiment left there is never written over."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from holdfast.core.errors import BadInput, Damaged
from holdfast.record import read

MACHINE = ("precision", "processes")  # the same experiment on another machine differs in these
# a model of all domains differs from the runs that were compared in these too, and in nothing else
REFITTED = ("plan", "plan_args", "select", "seed", *MACHINE)


def agrees(spec: Mapping[str, Any], wanted: Mapping[str, Any], aside: Collection[str]) -> bool:
    """Whether a spec has every setting that is wanted, some left aside."""
    return all(spec.get(key) == value for key, value in wanted.items() if key not in aside)


def check_own(
    folder: Path,
    records: Iterable[Path],
    wanted: Collection[Mapping[str, Any]],
    *,
    aside: Collection[str] = MACHINE,
) -> None:
    """One sentence where a record that lies in the folder agrees with nothing wanted; a broken one tells nothing."""
    for path in records:
        try:
            spec = read(path).spec
        except Damaged:
            continue
        if not any(agrees(spec, each, aside) for each in wanted):
            raise BadInput(
                f"{folder} holds what another experiment left ({spec['method']} on {spec['data']}, {spec['steps']} "
                "steps): name another folder with --out, or remove that one"
            )


def check_own_model(folder: Path, wanted: Collection[Mapping[str, Any]], *, aside: Collection[str] = MACHINE) -> None:
    """The same of a folder with one model, or an encoder; one that is not whole is anybody's."""
    if (folder / "config.json").is_file():
        check_own(folder, [folder / "record.json"], wanted, aside=aside)
