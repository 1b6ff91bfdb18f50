"""Readers and endpoints return a result or one sentence for generated inputs; `make soak` runs a million of them."""

from importlib.util import find_spec

import pytest

from tests.soak.inputs import SHARES, generate, sources

COUNT = 60  # inputs per kind
MARKS = {
    "zip graphs": [pytest.mark.graph], "TU text": [pytest.mark.graph], "SMILES": [pytest.mark.molecules],
    "/predict graph": [pytest.mark.graph, pytest.mark.molecules],
}  # fmt: skip
PACKAGES = {"graph": "torch_geometric", "molecules": "rdkit"}


def installed(kind: str) -> bool:
    return all(find_spec(PACKAGES[mark.name]) is not None for mark in MARKS.get(kind, ()))


@pytest.fixture(scope="module")
def available(tmp_path_factory):
    every = sources(tmp_path_factory.mktemp("inputs"), [kind for kind in SHARES if installed(kind)])
    yield every
    for kind, source in every.items():
        if kind.startswith("/predict"):
            source.check.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # pyarrow, for half a character
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=MARKS.get(kind, ())) for kind in SHARES])
def test_inputs_are_accepted_or_rejected_with_one_sentence(available, kind):
    inputs = generate(available[kind], COUNT, list(SHARES).index(kind))
    outcomes = available[kind].check(inputs)
    assert len(outcomes) == COUNT
    assert "rejected" in outcomes
