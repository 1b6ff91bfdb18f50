"""The model card says what was added to the network, and what to bring."""

from __future__ import annotations

import pytest

from holdfast.models.card import card
from holdfast.record import RunRecord
from tests.unit.report.fake_records import spec, stage


@pytest.mark.parametrize(
    ("given", "said", "brought"),
    [
        ({"encoder": "vit-tiny", "neck": "experts"}, "`erm` and neck `experts` on encoder `vit-tiny`", "PICTURES/"),
        ({"encoder": "bilstm", "neck": "none"}, "`erm` on encoder `bilstm`", "NEW.csv"),
    ],
)
def test_necks_and_what_to_bring(given, said, brought):
    last = stage(["a"], {"b": 0.5}) | {"sizes": {"train": {"a": 3}}}
    record = RunRecord(spec("erm", 0, **given), "to-b", [last], {"version": "1"}, {}, {})
    text = card("m", ["yes", "no"], record)
    assert said in text
    assert f"holdfast predict m {brought} --out" in text
