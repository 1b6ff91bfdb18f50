"""Labels as numbers, sets of labels and ordered levels."""

from dataclasses import replace

import numpy as np
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset, concatenated, encode, join
from holdfast.data.raw import Pixels, Texts, Vectors
from holdfast.data.sample import Sample, load_sample, save_sample
from holdfast.data.splits import row_hashes
from holdfast.data.targets import label_sets, measurements, numeric_targets, ordered_levels, separator_in
from holdfast.data.unlabelled import add_unlabelled
from holdfast.train.training_data import training_data


def data(labels, domain="x"):
    y, classes = encode([label for label in labels if label is not None])
    codes = np.full(len(labels), -1)
    codes[[label is not None for label in labels]] = y
    raw = Vectors(np.arange(len(labels), dtype=np.float32)[:, None])
    return Dataset("d", raw, codes, classes, np.zeros(len(labels), dtype=np.int64), (domain,))


def test_numbers_keep_their_values_and_missing_labels_are_nan():
    converted = numeric_targets(data(["2.5", "-1", None, "1e3"]), task="regress")
    np.testing.assert_equal(converted.targets, [2.5, -1.0, np.nan, 1000.0])
    assert converted.y.tolist() == [0, 0, -1, 0]
    assert (converted.classes, converted.task) == ((), "regress")
    assert converted.subset(np.array([3, 0])).targets.tolist() == [1000.0, 2.5]
    assert [converted.label_text(row) for row in range(4)] == ["2.5", "-1", "", "1000"]


def test_a_label_that_is_no_number_is_named_with_its_row():
    with pytest.raises(BadInput, match=r"d: row 2 has the label 'high', which is not a number: .*--task classify"):
        numeric_targets(data(["1", "high", "2"]), task="regress")
    with pytest.raises(BadInput, match=r"'inf'"):
        numeric_targets(data(["1", "inf"]), task="regress")


def test_one_constant_number_is_refused():
    with pytest.raises(BadInput, match=r"label 3 in every row"):
        numeric_targets(data(["3", "3"]), task="regress").checked()


@pytest.mark.parametrize(
    ("labels", "numeric"),
    [
        ([0.25 + i for i in range(400)], True), ([0.25 + i for i in range(400)] * 3, True), (list(range(400)), True),
        (list(range(100, 500)) * 3, True), ([0.5, 1.0, 1.5] * 20, False), ([f"name {i}" for i in range(400)], False),
        (list(range(10)) * 40, False), ([1, 2, 3, 4, 5] * 40, False),  # digits and stars
        ([17 + (i * i) % 74 for i in range(3000)], True), (list(range(1978, 2013, 2)) * 30, False),  # ages and surveys
        (list(range(1990, 2018)) * 30, True), (list(range(24)) * 9, False),  # years and hours
        ([5 * (i % 21) for i in range(900)], True), ([i % 13 for i in range(15)], True),  # steps, and rare numbers
        (list(range(100)) * 12, False), (list(range(1, 101)) * 12, False),  # ids of classes
        ([int(100 * (i / 5000) ** 3) for i in range(5000)], True), ([f"{i:05d}" for i in range(900, 990)] * 9, False),
        ([0.1 * i for i in range(25)] * 40, True), ([0.5 * i for i in range(11)] * 40, False),
    ],
)  # fmt: skip
def test_many_numbers_look_like_measurements(labels, numeric):
    assert bool(measurements(data([str(label) for label in labels]))) == numeric


def test_images_and_texts_have_ids_of_classes():
    unbalanced = data([str(i % (1 + i % 100)) for i in range(20_000)])
    assert measurements(unbalanced)
    pixels = replace(unbalanced, raw=Pixels(np.zeros((len(unbalanced), 1, 1, 3), np.uint8)))
    texts = replace(unbalanced, raw=Texts.of(["a"] * len(unbalanced)))
    assert not measurements(pixels)
    assert not measurements(texts)
    balanced = data([str(7 * (i % 200)) for i in range(4000)])  # numbers of objects
    assert measurements(balanced)
    assert not measurements(replace(balanced, raw=Texts.of(["a"] * len(balanced))))
    ages = data([str(20 + i % (1 + i % 70)) for i in range(20_000)])
    assert measurements(replace(ages, raw=Texts.of(["a"] * len(ages))))


def test_levels_have_a_note_and_codes_among_measurements_are_left_out():
    surveys = training_data(data([str(2 * i) for i in range(990, 1005)] * 30))
    assert surveys.notes[-1] == "the 15 distinct numbers of the label are classes; --task regress predicts numbers"
    assert not training_data(data(list("0123456789") * 30)).notes[1:]
    prices = data([*map(str, range(1000, 1200)), "N/D", "1300", "N/D"])
    kept = training_data(prices)
    assert (kept.task, len(kept)) == ("regress", 201)
    assert kept.targets.tolist() == [*range(1000, 1200), 1300]
    assert any("2 rows with a label such as 'N/D' are left out, because" in note for note in kept.notes)
    assert len(training_data(prices, task="classify").classes) == 202
    assert len(training_data(data([*"123" * 9, "x"])).classes) == 4


def test_training_data_infers_a_regression_with_a_note():
    measured = data([str(0.25 + i) for i in range(40)])
    inferred = training_data(measured)
    assert inferred.task == "regress"
    note = "40 distinct numeric labels in 40 examples, so that the task is regress"
    assert any(note in each for each in inferred.notes)
    chosen = training_data(measured, task="classify")
    assert (chosen.task, len(chosen.classes)) == ("", 40)


def test_labels_that_look_like_sets_are_reported():
    combined = data(["red|blue", "red", "green"])
    dataset = training_data(combined)
    assert "'red|blue' contain '|'" in dataset.notes[-1]
    assert "--task multilabel" in dataset.notes[-1]
    assert dataset.classes == ("green", "red", "red|blue")
    assert not training_data(data(["Paris, France", "Lyon, France"])).notes
    assert separator_in(data(["a,b", "b", "a"])) == ","


def test_sets_of_labels():
    converted = label_sets(data(["red|blue", "red", None, " blue "]), task="multilabel")
    assert converted.classes == ("blue", "red")
    assert converted.targets.tolist() == [[1, 1], [0, 1], [0, 0], [1, 0]]
    assert converted.y.tolist() == [0, 0, 0, 0]
    assert "1 rows have no label" in converted.notes[0]
    other = label_sets(data(["a b", "c"]), task="multilabel", separator=" ")
    assert other.classes == ("a", "b", "c")
    assert "no label contains a separator" in label_sets(data(["a", "b"]), task="multilabel").notes[0]


def test_levels_need_an_order_unless_they_are_numbers():
    assert ordered_levels(data(["10", "9", "2"]), None, task="ordinal").classes == ("2", "9", "10")
    with pytest.raises(BadInput, match=r"order of the labels high, low is unknown: .*--set task\.order=LOW"):
        ordered_levels(data(["low", "high"]), None, task="ordinal")
    levels = ordered_levels(data(["low", "high", None, "low"]), ["low", "high"], task="ordinal")
    assert (levels.classes, levels.y.tolist()) == (("low", "high"), [0, 1, -1, 0])
    with pytest.raises(BadInput, match=r"task\.order lacks the label 'low'"):
        ordered_levels(data(["low", "high"]), ["mid", "high"], task="ordinal")
    with pytest.raises(BadInput, match=r"names levels that do not occur"):
        ordered_levels(data(["low", "high"]), ["low", "mid", "high"], task="ordinal")


def test_targets_follow_joins_samples_hashes_and_fingerprints(tmp_path):
    first = numeric_targets(data(["1", "2.5"]), task="regress")
    second = numeric_targets(data(["4", "8"], "z"), task="regress")
    joined = join([first, second])
    assert (joined.targets.tolist(), joined.task) == ([1, 2.5, 4, 8], "regress")
    assert first.fingerprint != numeric_targets(data(["1", "2.25"]), task="regress").fingerprint
    assert row_hashes(first, np.arange(2))[0] != row_hashes(second, np.arange(2))[0]
    sets = [label_sets(data(["a|b", "b"]), task="multilabel"), label_sets(data(["c|b", "c"], "z"), task="multilabel")]
    assert join(sets).targets.tolist() == [[1, 1, 0], [0, 1, 0], [0, 1, 1], [0, 0, 1]]
    marked = replace(first, split=np.array([0, 2]))
    assert concatenated([marked, marked]).targets.tolist() == [1, 2.5, 1, 2.5]
    loaded = load_sample(save_sample(tmp_path / "s.safetensors", Sample(marked, 5), size=None)).dataset
    assert (loaded.targets.tolist(), loaded.task) == ([1, 2.5], "regress")


def test_labels_with_decimal_commas_are_numbers() -> None:
    names = tuple(f"{number},5" for number in range(30))
    dataset = Dataset("cars", Vectors(np.zeros((30, 1))), np.arange(30), names, np.zeros(30, dtype=int), ("a",))
    assert "30 distinct numeric labels" in measurements(dataset)
    converted = numeric_targets(dataset, task="regress")
    assert converted.targets.tolist() == [number + 0.5 for number in range(30)]
    assert "labels are read as numbers with a decimal comma" in converted.notes


def test_unlabelled_examples_have_no_targets() -> None:
    joined = add_unlabelled(numeric_targets(data(["1", "2.5"]), task="regress"), data(["4"], "z"))
    np.testing.assert_equal(joined.targets, [1, 2.5, np.nan])
    assert (joined.y.tolist(), joined.domains, joined.task) == ([0, 0, -1], ("x", "z"), "regress")
