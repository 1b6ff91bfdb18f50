"""The bill of materials and the table of licences list every dependency that is installed."""

import json
from importlib.metadata import distribution, version

import pytest

from studies import packages

PROJECT = {
    "name": "sample",
    "version": "3",
    "dependencies": ["numpy>=1", "jinja2"],
    "optional-dependencies": {"more": ["filelock", "holdfast-no-such-package>=1"]},
}


def test_dependencies_of_dependencies_and_installed_extras_are_listed():
    listed = {package.name: package for package in packages.dependencies(PROJECT)}
    assert {"numpy", "jinja2", "markupsafe", "filelock"} <= set(listed)
    assert "holdfast-no-such-package" not in listed
    assert listed["numpy"].version == version("numpy")
    assert listed["markupsafe"].is_required
    assert not listed["filelock"].is_required
    assert "BSD" in listed["numpy"].licence
    assert listed["jinja2"].requires == ("markupsafe",)


def test_bill_of_materials_is_cyclonedx_and_reproducible():
    listed = packages.dependencies(PROJECT)
    document = packages.bill_of_materials(PROJECT, listed)
    assert (document["bomFormat"], document["specVersion"], document["version"]) == ("CycloneDX", "1.5", 1)
    references = [component["bom-ref"] for component in document["components"]]
    assert len(references) == len(set(references)) == len(listed)
    assert f"pkg:pypi/numpy@{version('numpy')}" in references
    own, *others = document["dependencies"]
    assert own["ref"] == "pkg:pypi/sample@3"
    assert [name.partition("@")[0] for name in own["dependsOn"]] == ["pkg:pypi/jinja2", "pkg:pypi/numpy"]
    assert {reference for edge in others for reference in edge["dependsOn"]} <= set(references)
    assert document == packages.bill_of_materials(PROJECT, packages.dependencies(PROJECT))


def test_files_are_written_for_this_project(tmp_path, capsys):
    assert packages.main([str(tmp_path)]) == 0
    names = {component["name"] for component in json.loads((tmp_path / packages.SBOM).read_text())["components"]}
    assert {"torch", "numpy", "pyarrow", "safetensors", "transformers"} <= names
    table = (tmp_path / packages.TABLE).read_text()
    assert all(f"| {name} |" in table for name in names)
    assert f"{len(names)} dependencies" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lines", "licence"),
    [
        (["License-Expression: MIT", "License: other"], "MIT"),
        (["Classifier: License :: OSI Approved :: BSD License", "License: long"], "BSD License"),
        (["License: Apache 2.0"], "Apache 2.0"),
        ([], packages.UNKNOWN),
    ],
)
def test_licence_comes_from_the_most_precise_field(tmp_path, lines, licence):
    folder = tmp_path / "x-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", "Name: x", "Version: 1", *lines]) + "\n")
    assert packages.licence_of(type(distribution("numpy")).at(folder)) == licence
