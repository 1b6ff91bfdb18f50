from holdfast.stats.labels import grouped, is_plain
from tests.unit.report.fake_records import record


def run(method: str, neck: str | None = "none", *, neck_args: dict | None = None, **other):
    return record(method, 0, {"t": 0.5}, neck=neck, neck_args=neck_args or {}, **other)


def test_labels_name_necks_and_the_plain_backbone_comes_first():
    frozen = run("erm", "memory", neck_args={"frozen": True})
    runs = [run("mil", "memory"), frozen, run("erm", "memory"), run("dann"), run("erm")]
    assert list(grouped(runs)) == ["erm", "erm + memory", "erm + memory frozen", "dann", "mil + memory"]


def test_labels_name_a_mechanism_but_not_a_projection_that_all_runs_share():
    runs = [run("erm", "projection"), run("coral", "projection")]
    assert list(grouped([*runs, run("majority")])) == ["majority", "erm", "coral"]
    assert list(grouped([*runs, run("vrex")])) == ["erm + projection", "coral + projection", "vrex"]
    wide = run("erm", "projection", neck_args={"width": 8})
    assert list(grouped([*runs, wide])) == ["erm + projection", "erm + projection width=8", "coral + projection"]
    assert list(grouped([run("erm", "memory"), run("mil", "memory")])) == ["erm + memory", "mil + memory"]
    assert list(grouped([run("erm", "experts")])) == ["erm + experts"]
    assert list(grouped([run("mil", "memory", neck_args={"slots": 64})])) == ["mil + memory"]


def test_labels_omit_the_plain_backbone():
    runs = [run("erm", "projection"), run("coral", "projection"), run("mil", "memory"), run("dann")]
    assert list(grouped(runs)) == ["erm + projection", "coral + projection", "dann", "mil + memory"]
    two = [run("erm", "projection"), run("erm", "memory"), run("mil", "memory")]
    assert list(grouped(two)) == ["erm + memory", "erm + projection", "mil + memory"]
    assert list(grouped([run("coral"), run("mil", "memory")])) == ["coral", "mil + memory"]


def test_labels_have_the_neck_settings_that_differ():
    small, large = ({"slots": n, "heads": 2} for n in (8, 16))
    runs = [run("erm"), run("erm", "memory", neck_args=large), run("erm", "memory", neck_args=small)]
    assert list(grouped(runs)) == ["erm", "erm + memory slots=8", "erm + memory slots=16"]
    alone = [run("erm", "memory", neck_args=small), run("mil", "memory", neck_args=large)]
    assert list(grouped(alone)) == ["erm + memory slots=8", "mil + memory slots=16"]
    own = run("mil", "memory", neck_args={"fusion": "interpolate", "share": 0.5, "query_norm": True})
    assert list(grouped([run("erm", "memory"), own])) == ["erm + memory", "mil + memory"]
    assert list(grouped([own, run("mil", "memory", neck_args={"share": 0.1})])) == [
        "mil + memory",
        "mil + memory share=0.1",
    ]


def test_labels_have_other_settings_that_differ():
    runs = [run("mil", "memory", method_args={"gamma": g}) for g in (1, 10)] + [run("mil")]
    assert list(grouped(runs)) == ["mil (gamma=default)", "mil + memory (gamma=1)", "mil + memory (gamma=10)"]
    assert len(grouped([run("erm", None), run("erm", "none")])) == 2


def test_labels_show_unset_settings_as_default():
    runs = [run("erm", plan_args={"order": ["a", "b"]}), run("erm", plan_args={})]
    assert sorted(grouped(runs)) == ['erm (plan.order=["a", "b"])', "erm (plan.order=default)"]


def test_labels_show_steps_and_not_dependent_settings():
    runs = [run("erm", steps=100, every=10), run("erm", steps=300, every=30)]
    assert list(grouped(runs)) == ["erm (steps=100)", "erm (steps=300)"]


def test_labels_name_a_memory_at_prediction_time():
    runs = [run("erm"), run("erm", predict="knn"), run("erm", "memory")]
    assert list(grouped(runs)) == ["erm", "erm (predict=knn)", "erm + memory"]
    assert [is_plain(group[0]) for group in grouped(runs).values()] == [True, False, False]


def test_labels_name_a_general_memory_next_to_its_encoder():
    reader = run("erm", encoder="gmap", encoder_args={"domain": "minilm", "length": 32})
    runs = [run("erm", encoder="minilm", encoder_args={"length": 32}), run("dann", encoder="minilm"), reader]
    assert list(grouped(runs)) == ["erm", "erm + gmap", "dann"]
    assert [is_plain(each) for each in runs] == [True, False, False]
    assert list(grouped([reader])) == ["erm"]  # nothing to distinguish it from
    other = run("erm", encoder="gmap", encoder_args={"domain": "other"})
    assert list(grouped([runs[0], other])) == ["erm (gmap)", "erm (minilm)"]
