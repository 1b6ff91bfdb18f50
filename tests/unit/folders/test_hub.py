"""Model cards, their headers, and uploads to the hub."""

import sys
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml

import holdfast
from holdfast.core.errors import BadInput
from holdfast.data.load import load_data
from holdfast.folders.card import card, header
from holdfast.record import RunRecord
from tests.unit.report.fake_records import spec, stage


@pytest.mark.parametrize(
    ("task", "takes", "expected"),
    [
        ("classify", "text", "text-classification"),
        ("regress", "table", "tabular-regression"),
        ("regress", "image", None),
    ],
)
def test_header_names_library_task_and_tags(task, takes, expected):
    spec = {"task": task, "method": "swad(coral)", "encoder": 'hf:/home/me/"x"', "neck": "memory"}
    fields = yaml.safe_load(header(spec, takes).strip("-\n"))
    assert fields["library_name"] == "holdfast"
    assert fields.get("pipeline_tag") == expected
    assert fields["tags"] == ["domain-generalization", "swad(coral)", "hf:x", "memory"]


def test_push_uploads_the_current_version(monkeypatch, tmp_path):
    calls = []

    class Api:
        def __init__(self, token):
            calls.append(token)

        def create_repo(self, name, **options):
            calls.append((name, options["private"]))
            return f"https://hub/{name}"

        def upload_folder(self, **options):
            calls.append((options["repo_id"], options["folder_path"]))

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(HfApi=Api))
    with pytest.raises(BadInput, match="no model folder"):
        holdfast.push_to_hub(tmp_path, "me/reviews")
    (tmp_path / "config.json").write_text("{}")
    assert holdfast.push_to_hub(tmp_path, "me/reviews", token="t") == "https://hub/me/reviews"
    assert calls == ["t", ("me/reviews", True), ("me/reviews", str(tmp_path))]
    with pytest.raises(BadInput, match="use NAME or OWNER/NAME"):
        holdfast.push_to_hub(tmp_path, "a/b/c")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(BadInput, match="pip install huggingface_hub"):
        holdfast.push_to_hub(tmp_path, "me/reviews")


def test_data_sets_of_hugging_face_are_tables():
    frame = pd.DataFrame({"text": ["good", "bad"] * 4, "label": ["p", "n"] * 4, "domain": ["a"] * 4 + ["b"] * 4})
    kind = type("Dataset", (), {"__module__": "datasets.arrow_dataset", "to_pandas": lambda self: frame})
    assert load_data(kind()).domains == load_data(frame).domains


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
