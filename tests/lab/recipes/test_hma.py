"""Settings of the HMA tables, and specs of their rows on small files."""

from itertools import combinations

import numpy as np
import pytest

from holdfast import catalog
from holdfast.data.load import load_data
from tests.graphs import rings_and_stars, write_layout, write_zip
from tests.lab.recipes.tables import build, recipes_of
from tests.published import write_digits, write_images, write_molecules

RECIPES = recipes_of("hma")


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "hma/figure5"])
def test_every_table_has_controls(name):
    rows = RECIPES[name].rows
    for kind in ("param", "param-matched", "noise-queue", "untrained-slots", "one-by-one"):
        assert any(row == kind or row.endswith(f"+{kind}") for row in rows), kind
    for row, entry in rows.items():
        settings = entry.settings
        if row.endswith("noise-queue"):
            assert settings["neck.written"] is False
        elif row.endswith("untrained-slots"):
            assert settings["neck.frozen"] is True
        elif row.endswith(("param", "param-matched")):
            assert (settings["method"], settings["neck"]) == ("erm", row.rpartition("+")[2])
        names = ("neck.input_norm", "neck.init", "neck.include_self", "method.momentum_warmup")
        published = ("published", "published", True, False) if settings["method"] == "hma" else (None,) * 4
        assert tuple(settings.get(name) for name in names) == published
        expected = "support" if row.endswith("one-by-one") else "batch"
        assert settings.get("neck.context", expected) == expected
        assert ("neck.context" in settings) == (settings["method"] == "hma")


def test_settings_of_rows():
    rows = RECIPES["hma/table2"].rows
    assert rows["prompt-p+hma"].settings == rows["vit+hma"].settings | {"encoder.prompt": "shallow"}
    assert rows["prompt-a"].settings == rows["vit"].settings | {"encoder.prompt": "deep"}
    four = RECIPES["hma/table4"].rows
    assert {four[name].settings.get("augment") for name in ("drop-edge", "drop-node", "subgraph")} == {
        "drop-edge", "drop-node", "subgraph",
    }  # fmt: skip
    six = RECIPES["hma/table6"].rows
    assert {row: six[row].settings["encoder"] for row in ("erm", "asap", "dir", "ciga-v2", "hma")} == {
        "erm": "gin", "asap": "gin-asap", "dir": "gin-subgraph", "ciga-v2": "gin-subgraph", "hma": "gin",
    }  # fmt: skip
    assert RECIPES["hma/table5"].rows["ciga-v1"].settings["encoder"] == "gcn-subgraph"
    five = [(r.settings["neck.real"], r.settings["neck.slots"]) for r in RECIPES["hma/figure5"].rows.values()]
    assert five == [(real, slots) for real in (0, 128, 256, 512) for slots in (0, 8, 16, 32, 64)]
    points = [column.data for column in RECIPES["hma/figure2"].columns.values()]
    assert points[0] == "colored-mnist@first=0.2,second=0.1,size=28"
    assert points[-1] == "colored-mnist@first=0,second=0.02,size=14"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Small files of every data set of graphs, digits and images."""
    folder = tmp_path_factory.mktemp("sets")
    for name in ("NCI1", "NCI109", "PROTEINS", "DD", "IMDBBINARY", "IMDBMULTI", "REDDITBINARY", "REDDITMULTI5K",
                 "REDDITMULTI12K"):  # fmt: skip
        write_zip(folder / f"{name}.zip", rings_and_stars(60))
    dense = [(12, list(combinations(range(12), 2))[: 8 + i], i % 2) for i in range(40)]
    for name in ("Graph-SST5", "Graph-Twitter"):
        write_layout(folder / name, name, dense)
    write_molecules(folder / "molecules.csv", ("bace", "bbbp", "hiv"))
    write_digits(folder / "mnist.npz")
    write_images(folder)
    return folder


def data_of(recipe) -> list[str]:
    return list(dict.fromkeys(column.data for column in recipe.columns.values() if column.data))


ON_GRAPHS = ("hma/table3", "hma/table4", "hma/table5", "hma/table6", "hma/figure5")


@pytest.mark.parametrize("name", [*ON_GRAPHS, "hma/table7", "hma/figure2"])
def test_rows_build_valid_specs(name, folder):
    if name == "hma/table3":
        pytest.importorskip("rdkit", reason="molecules need RDKit")
    recipe = RECIPES[name]
    sets = {data: load_data(data, data_dir=folder) for data in data_of(recipe)}
    jobs = build(name, sets)
    assert len(jobs) == len(recipe.rows) * len(sets)
    for _, spec, plan in jobs:
        assert spec.plan == "given"
        assert len(plan) == 1
        if "real" in catalog.lookup("necks", spec.neck).setting_names():
            assert spec.neck_args["real"] in (0, 128, 192, 256, 512, 1024)
        assert spec.neck_args.get("support") in (None, 32, 128, 1024)


def test_data_settings_apply_to_rows_whose_part_has_them(folder):
    recipe = RECIPES["hma/table6"]
    (data,) = {column.data for column in recipe.columns.values() if column.name == "proteins"}
    sets = {data: load_data(data, data_dir=folder)}
    specs = {job.row.name: spec for job, spec, _ in build("hma/table6", sets, [], ["proteins"])}
    assert specs["hma"].neck_args == {
        "real": 128, "slots": 32, "support": 32, "context": "batch", "input_norm": "published", "init": "published",
        "include_self": True,
    }  # fmt: skip
    assert specs["erm"].neck_args == specs["param"].neck_args == {}
    network = {"layers": 3, "hidden": 32, "pooling": "max", "dropout": 0.3}
    assert all(spec.encoder_args == network for spec in specs.values())
    assert {(s.metric, s.optimizer, s.lr, s.clip, s.patience, s.batch) for s in specs.values()} == {
        ("mcc", "adam", 1e-3, 1.0, 25, 16)  # 32 in two environments
    }


def test_images_have_their_steps_crops_and_splits(folder):
    recipe = RECIPES["hma/table1"]
    sets = {data: load_data(data, data_dir=folder) for data in data_of(recipe)}
    built = build("hma/table1", sets, ["vit", "hma", "abd", "prompt-a"])
    specs = {(job.row.name, job.data): spec for job, spec, _ in built}
    for spec in specs.values():
        assert (spec.batch, spec.every, spec.warmup, spec.lr, spec.tune) == (128, 30, 10.0, 0.003, "full")
    assert {data: specs["vit", data].steps for data in sets} == {
        "dtd": 1000, "pets": 500, "flowers": 500, "cifar100": 10_000,
    }  # fmt: skip
    assert {data: specs["vit", data].augment for data in sets} == {
        "dtd": "crop-flip", "pets": "crop-flip", "flowers": "crop-flip", "cifar100": False,
    }  # fmt: skip
    assert specs["vit", "pets"].plan_args == {"valid": 0.1}
    published = {"support": 128, "context": "batch", "input_norm": "published"}
    published |= {"init": "published", "include_self": True}
    assert specs["hma", "dtd"].neck_args == {"real": 512, "slots": 16, **published}
    assert specs["abd", "dtd"].neck_args == published
    assert specs["prompt-a", "dtd"].encoder_args == {"prompt": "deep", "size": 224}
    part = RECIPES["hma/table8"].settings
    assert (part["tune"], part["lr"]) == ("head+cls", 0.01)


def test_a_shift_has_two_training_environments_and_scores_the_other_end(folder):
    size = load_data("proteins@shift=size", data_dir=folder)
    assert size.domains == ("small-1", "small-2", "large")
    degree = load_data("graph-twitter@shift=degree-reversed", data_dir=folder)
    assert degree.domains == ("high-1", "high-2", "middle", "low")
    assert np.bincount(degree.domain).min() > 0
