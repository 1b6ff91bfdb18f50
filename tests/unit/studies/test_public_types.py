"""The types of public names are complete; symbols of pyright that are not public do not count."""

import pytest

from studies import public_types
from studies.public_types import incomplete, public_paths


def symbol(name: str, *messages: str, category: str = "function", known: bool = False, ambiguous: bool = False) -> dict:
    diagnostics = [{"message": message} for message in messages]
    return {
        "name": name, "category": category, "isTypeKnown": known, "isTypeAmbiguous": ambiguous,
        "diagnostics": diagnostics,
    }  # fmt: skip


def test_public_paths_have_definitions_and_bases():
    paths = public_paths()
    names = {"holdfast.compare", "holdfast.api.compare", "holdfast.nn.SparseMoE", "holdfast.estimator.DomainEstimator"}
    assert names <= paths
    assert all(path.startswith("holdfast.") for path in paths)


def test_incomplete_names_and_members_are_listed_with_the_reason():
    checked = [
        symbol("holdfast.f", "No docstring found", "Return type\n  is unknown"),
        symbol("holdfast.C", category="class"),
        symbol("holdfast.C.x", category="variable", known=True, ambiguous=True),
        symbol("holdfast.C.y", category="variable", known=True),
        symbol("holdfast.internal.g", "Return type is unknown"),
        symbol("holdfast.E", "Type of metaclass unknown", "Type of base class unknown", category="class"),
        symbol("holdfast.D", 'Type of base class "holdfast.x.Y" is partially unknown', category="class"),
    ]
    public = {"holdfast.f", "holdfast.C", "holdfast.D", "holdfast.E"}
    assert list(incomplete(checked, public)) == [
        "holdfast.f: Return type is unknown",
        "holdfast.C.x: part of its type is unknown",
        'holdfast.D: Type of base class "holdfast.x.Y" is partially unknown',
    ]


@pytest.mark.slow
def test_types_of_all_public_names_are_complete():
    assert list(incomplete(public_types.symbols(), public_paths())) == []
