"""Numbers and names as people write them."""

from holdfast.report.words import metric_name


def test_a_metric_is_spelled_as_people_write_it():
    names = ("macro_f1", "roc_auc", "balanced_accuracy", "mcc")
    assert [metric_name(name) for name in names] == ["macro-F1 (%)", "ROC AUC (%)", "balanced accuracy (%)", "mcc"]
