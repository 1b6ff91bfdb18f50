"""docs/methods.md has a section for every method of the catalog, and its costs are those of the records."""

from __future__ import annotations

import json
import re
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest

from holdfast.catalog import ENCODERS, NECKS
from holdfast.catalog.methods import METHODS
from holdfast.nn.graft.insert import PLACES
from holdfast.nn.memory.heterogeneous import CONTEXTS
from holdfast.nn.memory.queue import STARTS

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## `([^`\n]+)`\n\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
BENCHED = ("dann", "irm", "coral", "vrex", "fishr", "mldg", "swad(METHOD)")
# one by definition, told in a sentence of their own, and that of the rule inside
OTHERWISE = ("erm", "mil", "hma", "progressive(METHOD)")
TOLD = [name for name in METHODS if name not in (*BENCHED, *OTHERWISE)]


def ratios(bench: str, device: str) -> dict[str, str]:
    found = json.loads((ROOT / f"results/bench/{bench}-{device}.json").read_text(encoding="utf-8"))
    two = Decimal("0.01")
    return {each["case"]: str(Decimal(str(each["ratio"])).quantize(two, ROUND_HALF_UP)) for each in found["results"]}


def test_every_method_has_a_section_in_the_order_of_the_catalog():
    assert list(SECTIONS) == list(METHODS)
    for name, text in SECTIONS.items():
        about, cost = (" ".join(part.split()) for part in text.split("\nCost: "))
        assert "Use it" in about, name
        assert re.search(r"\d", cost) or name in OTHERWISE, name


@pytest.mark.parametrize("name", BENCHED)
def test_costs_are_those_of_the_records(name):
    case = f"{name.replace('METHOD', 'erm')}/erm"
    gpu, cpu = ratios("methods", "cuda")[case], ratios("methods", "cpu")[case]
    assert f"Cost: {gpu} on an H200, {cpu} on a CPU" in SECTIONS[name]


@pytest.mark.parametrize("name", TOLD)
def test_costs_without_a_bar_are_those_of_the_records(name):
    case = f"{name.replace('METHOD', 'erm')}/erm"
    said, gpu = f"{ratios('costs', 'cpu')[case]} on a CPU.", ratios("costs", "cuda").get(case)
    assert (f"{gpu} on an H200, {said}" if gpu else said) in " ".join(SECTIONS[name].split())


def test_costs_of_memories_are_those_of_the_records():
    gpu, cpu = ratios("mil", "cuda"), ratios("mil", "cpu")
    step, predict = "meta-step/erm-on-seen", "predict-with-memory/without"
    told = " ".join(SECTIONS["mil"].split())
    assert f"takes {gpu[step]} on an H200 and {cpu[step]} on a CPU" in told
    assert f"with the memory {gpu[predict]} and {cpu[predict]} of one without" in told
    gpu, cpu = ratios("hma", "cuda"), ratios("hma", "cpu")
    full, tokens = "hma-step/plain, full", "hma-step/plain, head+cls"
    assert f"{gpu[full]} on an H200 and {cpu[full]} on a CPU where all learns" in SECTIONS["hma"]
    assert f"{gpu[tokens]} and {cpu[tokens]} where the class token" in SECTIONS["hma"]


def test_settings_that_are_named_exist():
    words = {*METHODS, "risk", "z", "p", "s", "l", "g", "r", "j", "omega", "q_i", "v_i", *NECKS}
    found = 0
    for name, text in SECTIONS.items():
        said = set(re.findall(r"`([a-z_]+)`", text))
        own = {setting for setting in said if setting in METHODS[name].setting_names()}
        assert said - own <= words, name
        found += len(own)
    assert found >= 12


def test_settings_of_hma_exist_with_all_their_values():
    said = re.findall(r"`(neck|encoder)\.([a-z_]+)(?:=([a-z]+))?`", SECTIONS["hma"])
    known = {"neck": NECKS["heterogeneous"].setting_names(), "encoder": ENCODERS["vit-s/16"].setting_names()}
    assert {setting for part, setting, _ in said if setting not in known[part]} == set()
    for key, values in (("context", CONTEXTS), ("start", STARTS), ("prompt", PLACES)):
        assert {value for _, setting, value in said if setting == key and value} == set(values)
    assert set(METHODS["hma"].necks) <= set(re.findall(r"`([a-z-]+)`", SECTIONS["hma"]))
