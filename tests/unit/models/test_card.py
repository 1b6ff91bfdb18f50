"""Model cards."""

import pytest

from holdfast.models.card import card
from holdfast.record import RunRecord
from tests.unit.report.fake_records import spec, stage


@pytest.mark.parametrize(
    ("options", "components", "placeholder"),
    [
        ({"encoder": "vit-tiny", "neck": "experts"}, ("`erm`", "`experts`", "`vit-tiny`"), "IMAGES/"),
        ({"encoder": "bilstm", "neck": "none"}, ("`erm`", "`bilstm`"), "NEW.csv"),
    ],
)
def test_card_names_the_components_and_the_input(options, components, placeholder):
    last = stage(["a"], {"b": 0.5}) | {"sizes": {"train": {"a": 3}}}
    record = RunRecord(spec("erm", 0, **options), "to-b", [last], {"version": "1"}, {}, {})
    text = card("m", ["yes", "no"], record)
    assert all(name in text for name in components)
    assert ("neck" in text) == (options["neck"] != "none")
    assert f"holdfast predict m {placeholder} --out" in text
