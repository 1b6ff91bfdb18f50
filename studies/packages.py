"""List the installed dependencies with their licences: python -m studies.packages [FOLDER], without a network.

Writes sbom.cdx.json, a bill of materials in the CycloneDX format, and licences.md, a table for people.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from holdfast.core.environment import VERSION

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "audit"
SBOM, TABLE = "sbom.cdx.json", "licences.md"
UNKNOWN = "not stated"
LONG = 80  # characters of a licence field that is a name, not the text of the licence
LICENCE_FILES = re.compile(r"(?:^|/)(?:licen[cs]e|copying)[^/]*$", re.IGNORECASE)


@dataclass(frozen=True)
class Package:
    """An installed package, its licence, the packages it requires, and whether holdfast needs it without extras."""

    name: str
    version: str
    licence: str
    requires: tuple[str, ...]
    is_required: bool

    @property
    def reference(self) -> str:
        """Package URL, which identifies the package in the bill of materials."""
        return f"pkg:pypi/{self.name}@{self.version}"


def licence_of(installed: Distribution) -> str:
    """Return the licence that the metadata of a package state: expression, classifiers, field, or name of a file."""
    metadata: Any = installed.metadata  # get is not part of its protocol
    if expression := metadata.get("License-Expression"):
        return expression
    classifiers = [text.rpartition(" :: ")[2] for text in metadata.get_all("Classifier") or () if "License ::" in text]
    if names := [name for name in classifiers if name != "OSI Approved"]:
        return ", ".join(names)
    stated = (metadata.get("License") or "").strip()
    if stated and len(stated) <= LONG and "\n" not in stated:
        return stated
    first = next((line.strip() for line in stated.splitlines() if line.strip()), "")
    if first:
        return first[:LONG]
    files = [str(path) for path in installed.files or () if LICENCE_FILES.search(str(path))]
    return f"{UNKNOWN}; see {files[0]}" if files else UNKNOWN


def _required_names(requirements: Iterable[str], extras: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the requirements that apply to this system with these extras: name -> its own extras."""
    names: dict[str, tuple[str, ...]] = {}
    for text in requirements:
        requirement = Requirement(text)
        environments = [{"extra": extra} for extra in ("", *extras)]
        if requirement.marker is None or any(requirement.marker.evaluate(each) for each in environments):
            names[canonicalize_name(requirement.name)] = tuple(sorted(requirement.extras))
    return names


def closure(requirements: Iterable[str], *, is_required: bool) -> dict[str, Package]:
    """Return all installed packages that these requirements need, directly or not, by name."""
    waiting, packages = list(_required_names(requirements, ()).items()), {}
    while waiting:
        name, extras = waiting.pop()
        if name in packages:
            continue
        try:
            installed = distribution(name)
        except PackageNotFoundError:  # an extra that is not installed
            continue
        needed = _required_names(installed.requires or (), extras)
        packages[name] = Package(name, installed.version, licence_of(installed), tuple(sorted(needed)), is_required)
        waiting += needed.items()
    return packages


def dependencies(project: Mapping[str, Any]) -> list[Package]:
    """Return the packages that a project needs, those of its extras included, sorted by name."""
    extras = [text for group in project.get("optional-dependencies", {}).values() for text in group]
    packages = closure(extras, is_required=False) | closure(project["dependencies"], is_required=True)
    return [packages[name] for name in sorted(packages)]


def _component(package: Package) -> dict[str, Any]:
    is_known = not package.licence.startswith(UNKNOWN)
    return {
        "type": "library",
        "bom-ref": package.reference,
        "name": package.name,
        "version": package.version,
        "purl": package.reference,
        "scope": "required" if package.is_required else "optional",
        **({"licenses": [{"license": {"name": package.licence}}]} if is_known else {}),
    }


def bill_of_materials(project: Mapping[str, Any], packages: list[Package]) -> dict[str, Any]:
    """Return the CycloneDX document; equal packages give an equal document."""
    own = Package(project["name"], project.get("version", VERSION), "Apache-2.0", (), is_required=True)
    references = {package.name: package.reference for package in packages}
    direct = sorted(_required_names(project["dependencies"], ()))
    edges = [(own.reference, direct), *((package.reference, package.requires) for package in packages)]
    components = [_component(package) for package in packages]
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([own.reference, *sorted(references.values())]))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{number}",
        "version": 1,
        "metadata": {"component": {**_component(own), "type": "application"}},
        "components": components,
        "dependencies": [
            {"ref": reference, "dependsOn": [references[name] for name in names if name in references]}
            for reference, names in edges
        ],
    }


def licence_table(packages: list[Package]) -> str:
    """Return a Markdown table of all packages."""
    rows = []
    for package in packages:
        needed = "yes" if package.is_required else "with an extra"
        rows.append(f"| {package.name} | {package.version} | {needed} | {package.licence} |")
    return "\n".join(["| package | version | needed | licence |", "|---|---|---|---|", *rows]) + "\n"


def main(words: list[str]) -> int:
    """Write both files and print packages that state no licence."""
    folder = Path(words[0]) if words else FOLDER
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    packages = dependencies(project)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SBOM).write_text(json.dumps(bill_of_materials(project, packages), indent=1) + "\n", encoding="utf-8")
    (folder / TABLE).write_text(licence_table(packages), encoding="utf-8")
    unknown = [package.name for package in packages if package.licence.startswith(UNKNOWN)]
    sys.stdout.write(f"{len(packages)} dependencies: {folder / SBOM}, {folder / TABLE}\n")
    sys.stdout.write(f"packages whose metadata state no licence: {', '.join(unknown) or 'none'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
