"""Version of Holdfast, and the versions of the packages that it uses.

Nothing is imported to read a version, so that this module stays fast.
"""

import platform
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

VERSION = "0.1.0"  # the only place: pyproject.toml and holdfast.__version__ read it
DEVELOPMENT = ("dev", "docs")  # extras for work on Holdfast itself


def installed_version(package: str) -> str | None:
    """Return the version of an installed package, None if it is missing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def requirements() -> Iterator[tuple[str, str, str]]:
    """Yield (extra, package, condition) per requirement, from the metadata of the installed package.

    The extra is empty for required packages; `condition` is the range of versions, such as `>=2.7`. Nothing is yielded
    if Holdfast runs from its source tree without being installed.
    """
    try:
        lines = requires("holdfast") or []
    except PackageNotFoundError:
        return
    for line in lines:
        requirement, _, marker = line.partition(";")
        match = re.match(r"([\w.-]+)\s*(.*)", requirement.strip())
        extra = re.search(r"""extra == ["']([\w-]+)["']""", marker)
        if match is not None and not (platform.system() == "Windows" and "win32" in marker):
            yield extra[1] if extra else "", match[1], match[2].strip()


def extras() -> dict[str, list[str]]:
    """Return the packages per extra, without the extras for work on Holdfast itself."""
    packages: dict[str, list[str]] = {}
    for extra, package, _ in requirements():
        if extra and extra not in DEVELOPMENT:
            packages.setdefault(extra, []).append(package)
    return packages


def versions() -> dict[str, str]:
    """Return the versions of Holdfast, Python, torch, and the packages of extras that are installed."""
    numbers = {"holdfast": VERSION, "python": platform.python_version()}
    names = ["torch", "transformers", *(package for packages in extras().values() for package in packages)]
    for name in dict.fromkeys(names):
        if (number := installed_version(name)) is not None:
            numbers[name] = number
    return numbers
