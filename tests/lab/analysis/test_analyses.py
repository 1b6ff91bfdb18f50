"""All analyses: entries, sections, files that are checked before the training, notes, t-SNE, the signed-rank test."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from holdfast import catalog
from holdfast.api import compare
from holdfast.core.errors import BadInput
from holdfast.data.readers.images import read_images
from holdfast.data.synthetic import world
from holdfast.report.page import analysis_sections
from holdfast.stats.labels import grouped
from holdfast.train.run import train
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace
from lab.analysis.bootstrap import bootstrap_signed_rank, signed_rank
from lab.analysis.catalog import ANALYSES
from lab.analysis.tsne import panels
from tests.lab.analysis import test_general_use, test_patches, test_routing, test_slots
from tests.unit.analysis.test_projection import stored as projection
from tests.unit.analysis.test_projection import views
from tests.unit.report import test_sections
from tests.unit.report.drawing import SCRIPT
from tests.unit.report.fake_records import analysed
from tests.unit.report.test_page import written


def write_images(folder: Path, *domains: str, parts: str) -> Path:
    for domain, label, i in itertools.product(domains, ("cat", "dog"), range(5)):
        place = folder / domain / label
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(place / f"{i}.png")
    (folder / "parts.csv").write_text(f"image,part,x,y\n{parts}\n")
    return folder


@pytest.mark.parametrize("name", ["expert-parts", "attention-map"])
def test_invalid_part_locations_raise_before_training(tmp_path, name):
    data = read_images(write_images(tmp_path, "photo", "sketch", "paint", parts="cat/0,tail,far,0.5"))
    workspace, ticks = Workspace(data), []
    chosen = make_spec(data, steps=1, every=1, batch=2, settings={"encoder": "cnn"})
    episode = workspace.episodes(chosen)[0]
    with pytest.raises(BadInput, match="row 1"):
        train(chosen, episode, workspace, tick=ticks.append, analyse=(name,))
    assert not ticks
    assert train(chosen, episode, workspace, tick=ticks.append)[0].stages
    assert ticks


def test_part_locations_of_other_images_are_noted(tmp_path):
    folder = write_images(tmp_path / "set", "photo", "sketch", parts="photo/cat/0.png,tail,0.5,0.5")
    done = compare(
        folder, baselines=False, methods=["erm"], out=tmp_path / "out", analyse=["expert-parts"], seeds=1, steps=1,
        batch=2, encoder="cnn", cache=False,
    )  # fmt: skip
    repeated, nothing, others = done.notes
    assert "repeat earlier ones" in repeated
    assert nothing.startswith("expert-parts: ")
    assert "'photo/cat/0.png'" in others
    assert "'cat/0'" in others
    assert "photo/cat/0.png" in done.report.read_text(encoding="utf-8")


def test_analyses_of_a_plain_network_have_nothing_to_show_and_are_explained(tmp_path):
    data = world("vector", "rotation", domains=3, size=60, classes=2, seed=0)
    names = [name for name in ANALYSES if name != "projection-tsne"]
    done = compare(
        data, methods=["erm"], seeds=1, steps=4, out=tmp_path, device="cpu", settings={"encoder.hidden": [8]},
        analyse=[*names, "a-distance"], baselines=False,
    )  # fmt: skip
    assert all(record.analysis[name] is None for record in done.records for name in names)
    assert {name for note in done.notes for name in note.partition(": ")[0].split(", ")} == set(names)
    (slots,) = (note for note in done.notes if note.startswith("slot-map, slot-map-tsne, slot-diversity: "))
    assert "method=hma" in slots
    assert slots in done.report.read_text(encoding="utf-8")


SEGMENT = {"mass": [0.25, 0.75], "effective": 7.4, "entropy": 2.0, "evenness": 0.8}
RESULTS = {
    "segment-mass": {"sizes": [1, 3], "owners": [0, 1], "sources": {"a": SEGMENT}, "targets": {SCRIPT: SEGMENT}},
    "routing": test_routing.stored(),
    "general-memory": test_general_use.STORED,
    "projection-tsne": projection("features", "memory", "backbone") | {"how": "tsne"},
    "expert-agreement": test_patches.AGREEMENT,
    "expert-parts": test_patches.PART_RESULT,
    "attention-map": test_patches.ATTENTION,
    "slot-map": test_slots.stored_map(),
    "slot-map-tsne": test_slots.stored_map("tsne"),
    "slot-attention": test_slots.stored_attention(),
    "slot-diversity": test_slots.STORED_SIMILARITY,
}


def test_entries_are_in_the_catalog():
    assert set(ANALYSES) <= set(catalog.buildable_names("analyses"))
    assert all(entry.needs for entry in ANALYSES.values())


@pytest.mark.parametrize("name", ANALYSES)
def test_every_analysis_has_a_section_if_records_have_its_result(name):
    groups = grouped([analysed("erm"), analysed("mil", **{name: RESULTS[name]})])
    (section,) = analysis_sections(groups, "accuracy")
    assert section.runs
    assert analysis_sections(grouped([analysed("erm"), analysed("mil", **{name: None})]), "accuracy") == []


@pytest.mark.slow
def test_report_escapes_names_and_gives_figures_unique_ids(tmp_path):
    results = {**test_sections.RESULTS, **RESULTS}
    text = written(tmp_path, [analysed(SCRIPT, **results), *(analysed("erm", seed, **results) for seed in (0, 1))])
    assert SCRIPT not in text
    assert "b<i>" not in text
    assert "b&lt;i&gt;" in text
    ids = re.findall(r'<div class="chart[^"]*" id="([^"]+)', text)
    assert len(ids) == len(set(ids)) >= 60


def test_drawing_imports_no_torch():
    modules = {entry.target.partition(":")[0] for entry in ANALYSES.values()}
    code = f"import {', '.join(modules)}, sys; sys.exit(str({{'torch', 'sklearn'}} & sys.modules.keys() or ''))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


@pytest.mark.slow
def test_tsne_separates_the_target():
    result = panels(views(n=60), seed=0)
    assert result is not None
    assert result["how"] == "tsne"
    panel = result["panels"]["backbone"]
    assert panel["variance"] is None
    assert len(panel["target"]["x"]) == 60
    near = np.array([panel["target"]["x"], panel["target"]["y"]]).T
    far = np.array([panel["sources"]["x"], panel["sources"]["y"]]).T
    middle = near.mean(axis=0)  # the target is one cluster without sources
    assert np.linalg.norm(far - middle, axis=1).min() > np.median(np.linalg.norm(near - middle, axis=1))


def test_signed_rank():
    # differences 1, 2, -3: W+ = 3; sums of subsets of {1, 2, 3} that reach 3: {3} {1,2} {1,3} {2,3} {1,2,3}
    assert signed_rank([1.0, 2.0, 0.0], [0.0, 0.0, 3.0]) == (3.0, 5 / 8)
    # ties: ranks 1.5, 1.5, 3 and W+ = 4.5; reached by {1.5,3} twice and by all three
    assert signed_rank([1.0, 0.0, 2.0], [0.0, 1.0, 0.0]) == (4.5, 3 / 8)
    assert signed_rank([0.5, 0.5], [0.5, 0.5]) == (0.0, 1.0)


def test_signed_rank_equals_scipy_without_ties():
    rng = np.random.default_rng(1)
    for n in (4, 10):
        a, b = rng.normal(size=(2, n))
        expected = stats.wilcoxon(a, b, alternative="greater", method="exact")
        assert signed_rank(a.tolist(), b.tolist())[1] == pytest.approx(expected.pvalue)


def test_signed_rank_ignores_rounding_errors():
    assert signed_rank([0.3, 0.1], [0.2, 0.2]) == signed_rank([3.0, 1.0], [2.0, 2.0])


def test_bootstrap_uses_the_same_samples_for_both():
    rng = np.random.default_rng(2)
    a = rng.random(500) < 0.7
    result = bootstrap_signed_rank(a.tolist(), a.tolist())
    assert result.a == result.b
    assert len(result.a) == 10
    assert result.p == 1.0
    assert all(value * 200 == pytest.approx(round(value * 200)) for value in result.a)
    better = bootstrap_signed_rank(np.ones(500).tolist(), a.tolist())
    assert better.p == 1 / 1024  # all ten draws are better: one of 2^10 signs
    assert bootstrap_signed_rank(a.tolist(), np.ones(500).tolist()).p == 1.0  # one-tailed
    assert bootstrap_signed_rank(a.tolist(), (~a).tolist(), seed=3) == bootstrap_signed_rank(
        a.tolist(), (~a).tolist(), seed=3
    )
