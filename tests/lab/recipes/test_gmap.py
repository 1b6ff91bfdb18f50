"""Settings of the G-MAP tables, specs of their rows, and runs of every baseline and control on small files."""

import pytest

from holdfast.core.errors import BadInput
from holdfast.nn.memory.general import plan_reads
from holdfast.train.training_data import training_data
from holdfast.train.workspace import Workspace
from lab.recipes.measure import jobs_for
from lab.recipes.recipe import Budget
from lab.recipes.reproduce import reproduce
from lab.recipes.specs import SpecBuilder
from tests import tiny
from tests.lab.recipes.tables import build_jobs, recipes_of
from tests.task_files import write_places, write_tasks

RECIPES = recipes_of("gmap")
CONTROLS = {"own-copy": "own", "other-text": "other", "random-general": "random"}


def test_every_table_has_controls():
    for name, recipe in RECIPES.items():
        if name in ("gmap/figure1", "gmap/figure4", "gmap/figure6"):
            continue
        for kind, memory in CONTROLS.items():
            rows = [row for row in recipe.rows.values() if row.name.endswith(kind)]
            assert rows, (name, kind)
            for row in rows:
                assert row.settings == {"encoder": "gmap", "method": "erm", "encoder.memory": memory}
                assert row.label.endswith("(control)")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    write_places(folder)
    return write_tasks(folder)


def specs_of(name: str, data, rows=(), *, corner: bool = False):
    """Return specs by row and data set; with `corner` only those of the first row and the first column."""
    recipe = RECIPES[name]
    cells = [cell for cell in recipe.choose(rows) if cell.column.data != "books-texts"]
    first = cells[0].row.name, cells[0].column.name
    cells = [cell for cell in cells if not corner or cell.row.name == first[0] or cell.column.name == first[1]]
    jobs = jobs_for(recipe, cells)
    sets = {job.data: training_data(job.data, task=recipe.task(job.data), data_dir=data) for job in jobs}
    built = build_jobs(recipe, sets, jobs)
    assert len(built) == len(jobs)
    for job, _, plan in built:
        assert all({part.domain for part in episode.stages[0].test} == set(job.targets) for episode in plan)
    return {(job.row.name, job.data): spec for job, spec, _ in built}


@pytest.mark.parametrize("name", RECIPES)
def test_rows_build_valid_specs(name, data):
    specs = specs_of(name, data, corner=True)
    reasons = {row for names in RECIPES[name].reasons.values() for row in names}
    assert {row for row, _ in specs} == set(RECIPES[name].rows) - reasons
    assert {spec.encoder for spec in specs.values()} == {"gmap"}
    assert {spec.tune for spec in specs.values()} == {"full"}


def test_checkpoints_lengths_and_budgets_of_texts(data):
    specs = specs_of("gmap/table1", data, ["fine-tuning", "gmap", "ensemble"])
    spec = specs["gmap", "chemprot"]
    assert spec.encoder_args == {
        "domain": "allenai/biomed_roberta_base", "general": "roberta-base", "pooling": "cls", "length": 256,
    }  # fmt: skip
    assert (spec.optimizer, spec.lr, spec.weight_decay, spec.clip) == ("adam", 4e-5, 0.0, 1.0)
    assert (spec.batch, spec.steps, spec.every, spec.metric) == (72, 6, 1, "micro_f1")  # 14 epochs of 26 texts
    assert spec.head_args == {"dropout": 0.5, "layers": 1}
    assert specs["fine-tuning", "imdb"].encoder_args["mix"] == 1.0
    assert specs["gmap", "imdb"].encoder_args["domain"] == "allenai/reviews_roberta_base"
    assert specs["gmap", "imdb"].encoder_args["length"] == 512
    assert specs["gmap", "imdb"].head_args == {"dropout": 0.5, "layers": 2}
    assert specs["ensemble", "imdb"].head_args == {
        "dropout": 0.5, "layers": 2, "shared": False, "add": "probabilities",
    }  # fmt: skip
    assert specs["gmap", "ag-news"].plan_args == {"valid": 5000 / 120_000}
    assert specs["gmap", "acl-arc"].metric == "macro_f1"
    star = specs_of("gmap/table2", data, ["tapt", "dapt+tapt", "gmap"])
    names = {row: star[row, "scierc"].encoder_args["domain"] for row in ("tapt", "dapt+tapt", "gmap")}
    assert names == {
        "tapt": "allenai/dsp_roberta_base_tapt_sciie_3219",
        "dapt+tapt": "allenai/dsp_roberta_base_dapt_cs_tapt_sciie_3219",
        "gmap": "allenai/dsp_roberta_base_dapt_cs_tapt_sciie_3219",
    }


def test_tasks_of_questions_tags_and_masked_words(data):
    specs = specs_of("gmap/table3", data, ["gmap"])
    tasks = {name: (s.task, s.metric, s.lr, s.weight_decay, s.warmup, s.batch) for (_, name), s in specs.items()}
    assert tasks == {
        "medication": ("span", "answer_f1", 3e-5, 0.01, 0.06, 64),
        "ncbi-disease": ("tag", "entity_f1", 5e-5, 0.0, 0.0, 32),
        "newsqa": ("span", "answer_f1", 3e-5, 0.01, 0.06, 64),
        "conll2003": ("tag", "entity_f1", 5e-5, 0.0, 0.0, 32),
    }
    assert specs["gmap", "conll2003"].encoder_args["domain"] == "allenai/news_roberta_base"
    words = specs_of("gmap/figure5", data, ["gmap-bm"])["gmap-bm", "cs-texts"]
    assert (words.task, words.batch, words.encoder_args["domain"]) == ("masked", 128, "allenai/biomed_roberta_base")
    assert words.plan_args == {"test": 0.3, "valid": 0.01}
    first = specs_of("gmap/figure1", data)
    assert {spec.steps for spec in first.values()} == {1}
    assert first["roberta", "cs-texts"].encoder_args["domain"] == "roberta-base"
    pairs = [row.settings["encoder.layers"] for row in RECIPES["gmap/figure4"].rows.values()]
    assert pairs == [[f"{i}/12", f"{i + 6}/12"] for i in range(1, 7)]


@pytest.mark.parametrize("name", ["gmap/figure4", "gmap/figure6"])
def test_layers_scale_to_any_depth(name):
    for depth in (1, 3, 6, 12, 24):
        for row in RECIPES[name].rows.values():
            layers = row.settings["encoder.layers"]
            strategy = row.settings.get("encoder.strategy", "chunk-gated")
            reads = plan_reads(strategy, depth=depth, general=depth, layers=layers)
            numbers = [int(text.partition("/")[0]) for text in layers]
            if depth == 12:
                assert [place + 1 for place in reads] == numbers
            if depth == 6:
                assert [place + 1 for place in reads] == [(each + 1) // 2 for each in numbers]  # halves are rounded up


@pytest.mark.slow
def test_layer_sweeps_run_on_a_network_with_three_layers(data, models, tmp_path):
    four = run("gmap/figure4", data, models, tmp_path / "4", columns=["acl-arc"], rows=["1-7", "6-12"])
    six = run("gmap/figure6", data, models, tmp_path / "6", columns=["acl-arc"], rows=["single-9", "gated-12"])
    assert all(cell.values for cell in (*four.cells, *six.cells))
    assert any("scaled" in note for note in four.notes)


def test_a_warmup_fraction_stays_a_fraction():
    budget = Budget(epochs=3, batch=64, warmup=0.06)
    assert budget.settings(domains=1, examples=6400)["warmup"] == 0.06
    assert budget.settings(domains=1, examples=6400, steps=7)["warmup"] == 0.06


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    for start in ("dapt", "tapt", "dapt+tapt"):
        tiny.tiny_masked(place / f"{start}-acl-arc")
    for name in ("tapt-ncbi-disease", "tapt-conll2003", "dapt-ncbi-disease", "dapt-conll2003"):
        tiny.tiny_masked(place / name)
    tiny.tiny_masked(place / "domain")
    tiny.tiny_bert(place / "general")
    return place


def run(name: str, data, models, out, *, domain: str = "domain", **options):
    settings = {"encoder.domain": str(models / domain), "encoder.general": str(models / "general")}
    settings |= {"encoder.length": 16, "batch": 4}
    return reproduce(name, data_dir=data, seeds=1, steps=1, out=out, settings=settings, **options)


@pytest.mark.slow
def test_every_baseline_strategy_and_control_runs(data, models, tmp_path):
    rows = [row for row in RECIPES["gmap/table1"].rows if row not in ("mix-0.1", "mix-0.3", "mix-0.9")]
    done = run("gmap/table1", data, models, tmp_path, rows=rows, columns=["acl-arc"], analyse=["general-memory"])
    assert all(cell.values for cell in done.cells)
    assert len(done.records) == len(rows) == 13  # every row has its own run
    read = [r for r in done.records if r.analysis["general-memory"] is not None]
    assert len(read) == 7  # four strategies and three controls
    for record in read:
        usage = record.analysis["general-memory"]["targets"]["acl-arc"]
        assert all(0 < mass < 1 for layer in usage["mass"] for mass in layer)
        scores = record.stages[-1]["test"]["acl-arc"]
        assert usage["scores"]["read"] == pytest.approx(scores[record.spec["metric"]])
        assert 0 <= usage["scores"]["hidden"] <= 1
    assert "Reads from the general model" in done.report.read_text()


@pytest.mark.slow
def test_the_column_without_leaks_and_checkpoints_by_start_and_data(data, models, tmp_path):
    options = {"columns": ["acl-arc", "acl-arc-clean"], "rows": ["tapt", "gmap"], "domain": "{start}-{data}"}
    done = run("gmap/table2", data, models, tmp_path, **options)
    sizes = {r.spec["data"]: r.stages[0]["sizes"]["test"]["acl-arc"] for r in done.records}
    assert sizes == {"acl-arc": 6, "acl-arc@leaks=drop": 5}
    domains = {r.spec["encoder_args"]["domain"] for r in done.records}
    assert domains == {str(models / f"{start}-acl-arc") for start in ("tapt", "dapt+tapt")}
    assert any("acl-arc@leaks=drop" in note for note in done.notes)


@pytest.mark.slow
def test_attention_variants_questions_tags_and_masked_words_run(data, models, tmp_path):
    five = run("gmap/table5", data, models, tmp_path / "5", columns=["acl-arc"], rows=["cross", "gate"])
    four = run("gmap/table4", data, models, tmp_path / "4", columns=["acl-arc"], rows=["unfrozen"])
    assert all(cell.values for cell in (*five.cells, *four.cells))
    columns = ["medication-em", "medication-f1", "ncbi-disease"]
    three = run("gmap/table3", data, models, tmp_path / "3", columns=columns, rows=["gmap", "other-text", "kala"])
    measured = {(c.cell.row.name, c.cell.column.name): c for c in three.cells}
    assert all(measured[row, column].values for row in ("gmap", "other-text") for column in columns)
    assert len(three.records) == 4  # both columns of a question data set share a run
    assert "quoted" in measured["kala", "ncbi-disease"].reason
    words = run("gmap/figure5", data, models, tmp_path / "w", rows=["gmap-bm"])
    assert [bool(cell.values) for cell in words.cells] == [True, True, False]
    assert "bookcorpus" in words.cells[-1].reason
    with pytest.raises(BadInput, match=r"a-distance.*feature"):
        run("gmap/table3", data, models, tmp_path / "a", rows=["gmap"], analyse=["a-distance"])


@pytest.mark.slow
def test_the_general_memory_analysis_supports_tags_and_spans(data, models, tmp_path):
    columns = ["medication-f1", "ncbi-disease"]
    options = {"columns": columns, "rows": ["dapt", "gmap"], "analyse": ["general-memory"]}
    done = run("gmap/table3", data, models, tmp_path, **options)
    assert all(cell.values for cell in done.cells)
    for record in done.records:
        usage, strategy = record.analysis["general-memory"], record.spec["encoder_args"].get("strategy")
        assert (usage is None) == (strategy == "none")
        if usage is not None:
            (target,) = usage["targets"].values()
            (scores,) = record.stages[-1]["test"].values()
            assert target["scores"]["read"] == pytest.approx(scores[record.spec["metric"]])
            assert all(0 < mass < 1 for layer in target["mass"] for mass in layer)
    report = done.report.read_text()
    assert "Reads from the general model" in report


@pytest.mark.slow
def test_tapt_rows_run_with_named_checkpoints(data, models, tmp_path):
    options = {"columns": ["ncbi-disease", "conll2003"], "rows": ["tapt", "dapt"]}
    done = run("gmap/table3", data, models, tmp_path, domain="{start}-{data}", **options)
    assert all(cell.values for cell in done.cells)
    domains = {r.spec["encoder_args"]["domain"] for r in done.records}
    assert domains == {str(models / f"{start}-{name}") for start in ("tapt", "dapt") for name in options["columns"]}
    with pytest.raises(BadInput, match=r"checkpoints were not published.*encoder.domain"):
        reproduce("gmap/table3", data_dir=data, rows=["tapt"], seeds=1, steps=1, out=tmp_path / "none")


def test_task_settings_apply_to_tasks_that_have_them(data, models, tmp_path):
    jobs = jobs_for(RECIPES["gmap/table3"], RECIPES["gmap/table3"].choose(["gmap"]))
    builder = SpecBuilder(RECIPES["gmap/table3"], jobs, encoder=None, steps=None, options={"task.stride": 100})
    for job in jobs:
        workspace = Workspace(training_data(job.data, task=RECIPES["gmap/table3"].task(job.data), data_dir=data))
        spec = builder.spec(job, workspace)
        assert spec.task_args == ({"stride": 100} if spec.task == "span" else {})
    with pytest.raises(BadInput, match="task setting of gmap/table3 'strid'"):
        SpecBuilder(RECIPES["gmap/table3"], jobs, encoder=None, steps=None, options={"task.strid": 100})
