"""Whose a folder is: what another experiment left there is never written over."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from holdfast.core.errors import BadInput, Damaged
from holdfast.record import read
from holdfast.spec import Spec

MACHINE = ("precision", "processes")  # the same experiment on another machine differs in these
COMPARED = ("data", "task")  # a comparison, and a search, go on with other settings: their choice may change


def check_own(folder: Path, records: Iterable[Path], spec: Spec, *, settings: Iterable[str]) -> None:
    """One sentence where a record that lies in the folder differs in one of these; a broken one tells nothing."""
    wanted = spec.json()
    for path in records:
        try:
            found = read(path).spec
        except Damaged:
            continue
        if any(found.get(name) != wanted[name] for name in settings):
            raise BadInput(
                f"{folder} holds what another experiment left ({found['method']} on {found['data']}, {found['steps']} "
                "steps): name another folder with --out, or remove that one"
            )


def check_own_model(folder: Path, spec: Spec, *, settings: Iterable[str] | None = None) -> None:
    """The same of a folder with one model, or an encoder, by default in all settings; one not whole is anybody's."""
    if (folder / "config.json").is_file():
        told = [name for name in spec.json() if name not in MACHINE] if settings is None else settings
        check_own(folder, [folder / "record.json"], spec, settings=told)
