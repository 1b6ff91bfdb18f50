"""Spelling of metrics."""

from holdfast.stats.formatting import metric_name


def test_metric_names():
    names = ("macro_f1", "roc_auc", "balanced_accuracy", "mcc")
    assert [metric_name(name) for name in names] == ["macro-F1 (%)", "ROC AUC (%)", "balanced accuracy (%)", "mcc"]
