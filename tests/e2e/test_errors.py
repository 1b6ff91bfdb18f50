"""Commands that cannot run: one sentence that names the problem, exit code 2, and no file is changed."""

import shlex

import numpy as np
import pytest

from holdfast.data.synthetic import world
from tests.annotated import write_names
from tests.calls import check_error, files, run_cli
from tests.e2e.conftest import QUICK, write_reviews
from tests.graphs import rings_and_stars, write_zip
from tests.published import write_published
from tests.talks import write_talks
from tests.tiny import tiny_masked

LONG = "a" * 300
BILSTM = "--encoder bilstm"
ONCE = "--seeds 1 --steps 2 --no-model"
TEMPLATE = "--set 'encoder.template=It was {mask} . {text}'"
WORDS = """--set 'head.words={"neg": ["bad", "not"], "pos": "good"}'"""
CONFIGS = {
    "cut": "{", "list": "[1]", "type": '{"method": 3}', "name": '{"lrr": 1}',
    "setting": '{"method": "coral", "method.wait": 1}', "value": '{"steps": "many"}', "nested": "[" * 100_000,
}  # fmt: skip

# command -> [(rest of the command line, pattern of the error)]
ERRORS = {
    "compare --no-baselines reviews.csv": [
        ("--methods ermm", r"'ermm': did you mean 'erm'\? `holdfast list methods`"),
        ("--encoder minilmm", r"did you mean 'minilm'"),
        ("--encoder mlp", r"'mlp'.*vector.*text"),
        ("--metric acuracy", r"did you mean 'accuracy'"),
        ("--plan leave-one-in", r"did you mean 'leave-one-out'"),
        ("--plan all --methods erm", r"plan all.*--plan leave-one-out"),
        (f"{BILSTM} --set encoder.hiden=3", r"did you mean 'hidden'"),
        (f"{BILSTM} --set encoder.hidden=x", r"hidden.*integer.*'x'"),
        (f"{BILSTM} --set steps=many", r"steps"),
        (f"{BILSTM} --set weight_decay=-1", r"weight_decay"),
        (f"{BILSTM} --set plan.targets=zzz", r"no domain 'zzz'.*books, films"),
        (f"{BILSTM} --tune las:1", r"unknown tuning 'las:1'"),
        (f"{BILSTM} --out reviews.csv/x", r"cannot write"),
        ("--set lr", r"KEY=VALUE"),
        ("--set plan.valid=1.5", r"between 0 and 1.*1\.5"),
        ("--device tpu", r"auto, cpu.*cuda"),
        ("--examples -3", r"-3"),
        ("--steps 0", r"steps.*at least 1"),
        ("--seeds none", r"--seeds.*none"),
        ("--methods erm --methods=coral", r"--methods .*twice.*commas"),
        ("--seeds=1 --seeds 2", r"--seeds .*twice.*once"),
        ("--config nested.json", r"nested\.json is not a JSON file"),
        ("--config value.json", r"steps must have the type int"),
        ("--log paper", r"--log"),
        (f"{ONCE} {BILSTM} --methods erm --jobs 0", r"--jobs.*auto.*'0'"),
        (f"{ONCE} {BILSTM} --methods erm --set patience=-1", r"patience.*at least 0"),
        (f"{ONCE} {BILSTM} --methods coral --set method.weight=-1", r"'coral': weight.*at least 0.*-1"),
        (f"{ONCE} {BILSTM} --methods erm --plan stream --set plan.order=books,books", r"'books' twice"),
        (f"{ONCE} {BILSTM} --methods erm --plan stream --select oracle", r"--select.*train-validation"),
        (f"{ONCE} {BILSTM} --methods erm --lr -1", r"lr.*above 0.*-1"),
    ],
    "sweep": [
        ("world.npz --sampler randon", r"'randon'"),
        ("world.npz --trials 0", r"--trials"),
        ("world.npz --trials many", r"--trials"),
        ("world.npz --methods corl", r"'corl'"),
        ("world.npz --select orakel", r"'orakel'"),
        ("world.npz --select leave-one-domain-out --plan stream", r"--plan leave-one-out"),
        ("world.npz --seeds 0", r"seed"),
        (f"reviews.csv --methods erm --plan all {BILSTM}", r"--plan leave-one-out"),
    ],
    "fit world.npz --out out": [
        ("--config best.json", r"best\.json"),
        ("--config cut.json", r"cut\.json"),
        ("--config list.json", r"list\.json"),
        ("--config type.json", r"method"),
        ("--config name.json", r"'lrr'"),
        ("--config setting.json", r"'wait'"),
        ("--config value.json", r"steps must have the type int"),
    ],
    "audit": [
        ("nowhere.csv", r"nowhere\.csv"),
        ("reviews.csv --near 3", r"near"),
        ("reviews.csv --clean clean.txt", r"clean\.txt"),
        ("reviews.csv --clean reviews.csv", r"reviews\.csv"),
        ("reviews.csv --out ./reviews.csv", r"reviews\.csv"),
        ("reviews.csv --task clasify", r"classify"),
        ("reviews.csv --column domain=shop", r"shop"),
    ],
    "serve": [
        ("none", r"none is not a model folder"),
        ("model --max-batch 0", r"batch"),
        ("model --host 999.1.1.1", r"999\.1\.1\.1"),
        ("model --port 99999", r"99999"),
    ],
    "": [
        ("compair x", r"compair"),
        ("list metods", r"did you mean 'methods'"),
        ("list methods --jsn", r"--jsn"),
        ("bench lop", r"unknown bench 'lop'.*did you mean 'loop'"),
        ("bench foo", r"'foo'.*`holdfast list benches`"),
        ("fit ''", r"empty name"),
        ("fit none.csv --log paper", r"paper"),
        ("predict model reviews.csv --out reviews.csv", r"reviews\.csv.*--out|--out.*reviews\.csv"),
        ("report model", r"`holdfast predict model FILE`"),
        ("export model model.onnx", r"bilstm"),
        ("export model model.txt", r"\.onnx"),
        ("rollback nowhere", r"nowhere is not a model folder"),
        (f"compare {LONG}.csv", r"a{100}.*shorter path"),
        (f"fit reviews.csv --out {LONG}", r"a{100}.*shorter path"),
        (f"fit reviews.csv --encoder hf:{LONG} --steps 2", r"a{100}.*shorter path"),
        (f"predict {LONG} reviews.csv", r"a{100}.*shorter path"),
        (f"pretrain {LONG}.csv", r"a{100}.*shorter path"),
    ],
    "compare talks.csv --task respond --seeds 1 --steps 1": [
        ("--methods cdann", r"'cdann' .*respond"),
        ("--encoder bilstm", r"'bilstm' .*respond"),
        ("--set neck=memory", r"neck 'memory' .*respond"),
        ("--set head=linear", r"head 'linear' .*respond"),
        ("--metric accuracy", r"unknown metric 'accuracy'"),
        ("--column response=response", r"both --column message=NAME"),
    ],
    "compare talks.csv": [
        ("--task respnd", r"unknown task 'respnd': did you mean 'respond'"),
        ("--methods erm", r"talks\.csv has no label"),
    ],
    "compare names --task tag --methods erm --seeds 1 --steps 1": [
        ("--encoder hf:bert --analyse projection", r"'projection' .*tag"),
        ("--encoder bilstm", r"'bilstm' .*tag"),
        ("--encoder hf:bert --metric macro_f1", r"unknown metric 'macro_f1'"),
        ("--encoder hf:bert --column tags=x", r"--column"),
        ("--encoder hf:bert --set encoder.template=sentiment-0", r"encoder\.template"),
    ],
    "fit reviews.csv --encoder hf:bert --steps 2 --out m": [
        ("--set head=wrods", r"did you mean 'words'"),
        (f"{TEMPLATE} --set head=words", r'head\.words=\{"neg"'),
        (f"""{TEMPLATE} --set head=words --set 'head.words={{"neg": ["bad"]}}'""", r"no word for class 'pos'"),
        (f"""{TEMPLATE} --set head=words --set 'head.words={{"negg": "bad", "pos": "good"}}'""", r"did you mean 'neg'"),
        (f"""{TEMPLATE} --set head=words --set 'head.words={{"neg": "awful", "pos": "good"}}'""", r"first_piece=true"),
        (f"--set head=words {WORDS}", r"encoder\.template=It was"),
        ("--set 'encoder.template={mask} {mask} {text}'", r"must have one \{mask\}"),
        ("--set encoder.template=sentiment-4", r"unknown template 'sentiment-4': did you mean"),
        ("--set encoder.template=nli", r"is for pairs"),
        (f"{TEMPLATE} --set head=words {WORDS} --set neck=projection", r"32 features"),
        (f"{TEMPLATE} --set head=words {WORDS} --set head.ful=true", r"did you mean 'full'"),
        ("--set head.dropout=0.1", r"unknown setting of head 'linear' 'dropout'"),
    ],
    "reproduce": [
        ("mil/table9", r"'mil/table9'.*mil/table"),
        ("mil/table1 --rows baselin", r"row of mil/table1 'baselin'.*'baseline'"),
        ("mil/table1 --columns book", r"'book'.*'books'"),
        ("mil/table1 --rows pada", r"mil/table1.*T5"),
        ("mil/table1 --seeds 0", r"at least one seed"),
        ("mil/table2 --rows mil --data-dir empty", r"mnli\.csv.*empty.*premise, hypothesis"),
        ("mil/table1", r"amazon\.csv.*--data-dir"),
        ("mil/table1 --set method=coral", r"rows of mil/table1.*method"),
        ("mil/table1 --set plan.targets=dvd", r"columns of mil/table1.*plan\.targets"),
        ("mil/table1 --data-dir sets --set neck.slotts=3", r"neck setting of mil/table1 'slotts'.*'slots'"),
        ("pmb/table1 --rows yu", r"pmb/table1.*quoted from Yu"),
        ("pmb/table1 --encoder minilm", r"rows of pmb/table1.*--encoder"),
        ("gmoe/table1 --rows erm,vit --encoder vit-tiny --set encoder.weights=x.safetensors",
         r"rows erm of gmoe/table1.*--encoder"),
        ("pmb/table1 --data-dir sets --set encoder.hiden=3", r"encoder setting of pmb/table1 'hiden'.*'hidden'"),
        ("mil/table1 --data-dir sets --set lrr=3", r"'lrr'.*'lr'"),
    ],
}  # fmt: skip
ON_GRAPHS = [
    ("shapes.zip --methods erm", r"needs at least 2 domains"),
    ("shapes.zip@shift=sise --plan given", r"did you mean 'size'"),
    ("shapes.zip --plan given --methods ciga-v2", r"--encoder gin-subgraph"),
    ("shapes.zip --plan given --methods erm --set augment=true", r"one of drop-edge"),
    ("nci1 --plan given", r"chrsmrrs\.github\.io"),
]
CASES = [(f"{command} {rest}", pattern) for command, cases in ERRORS.items() for rest, pattern in cases]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data of every kind, a model, and configurations that cannot be read."""
    folder = tmp_path_factory.mktemp("folder")
    write_reviews(folder / "reviews.csv", size=6)
    write_talks(folder / "talks.csv", size=4)
    write_names(folder / "names", 4)
    write_published(folder / "sets")
    tiny_masked(folder / "bert")
    (folder / "empty").mkdir()
    write_zip(folder / "shapes.zip", rings_and_stars(40))
    data = world("vector", "rotation", domains=3, size=24)
    labels, domains = np.asarray(data.classes, dtype=str)[data.y], np.asarray(data.domains, dtype=str)[data.domain]
    np.savez(folder / "world.npz", x=data.raw.data, y=labels, domain=domains)
    for name, text in CONFIGS.items():
        (folder / f"{name}.json").write_text(text)
    fitted = run_cli("fit", folder / "reviews.csv", "--steps", 2, "--out", folder / "model", *QUICK)
    assert fitted.code == 0, fitted.err
    return folder


def check(folder, words: str, pattern: str) -> None:
    before = files(folder)
    check_error(run_cli(*shlex.split(words)), pattern)
    assert files(folder) == before


@pytest.mark.parametrize(("words", "pattern"), CASES, ids=[words[:60] for words, _ in CASES])
def test_command_is_rejected_with_one_sentence(folder, monkeypatch, words, pattern):
    monkeypatch.chdir(folder)
    check(folder, words, pattern)


@pytest.mark.graph
@pytest.mark.parametrize(("words", "pattern"), ON_GRAPHS)
def test_command_on_graphs_is_rejected(folder, monkeypatch, words, pattern):
    monkeypatch.chdir(folder)
    check(folder, f"compare --no-baselines --seeds 1 --steps 2 --set encoder.hidden=8 {words}", pattern)


def test_errors_are_json_with_the_option(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for words, pattern in (CASES[0], ("compare nothing.csv", r"nothing\.csv")):
        check_error(run_cli(*shlex.split(words), "--json"), pattern, machine=True)
