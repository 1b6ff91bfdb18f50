import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from holdfast.core.errors import BadInput
from holdfast.tasks.classify import Classify

TASK = Classify()


@pytest.fixture
def case():
    torch.manual_seed(0)
    return torch.randn(200, 3), torch.randint(0, 3, (200,))


def test_all_metrics_match_sklearn(case):
    logits, y = case
    got = TASK.scores(logits, y, TASK.metrics)
    chosen, p = logits.argmax(1).numpy(), logits.double().softmax(1).numpy()
    assert set(got) == set(TASK.metrics)
    assert got["accuracy"] == pytest.approx(sk.accuracy_score(y, chosen))
    assert got["micro_f1"] == pytest.approx(sk.f1_score(y, chosen, average="micro"))
    assert got["macro_f1"] == pytest.approx(sk.f1_score(y, chosen, average="macro"))
    assert got["balanced_accuracy"] == pytest.approx(sk.balanced_accuracy_score(y, chosen))
    assert got["mcc"] == pytest.approx(sk.matthews_corrcoef(y, chosen))
    assert got["roc_auc"] == pytest.approx(sk.roc_auc_score(y, p, multi_class="ovr"))
    assert got["nll"] == pytest.approx(sk.log_loss(y, p))


def test_calibration_error_by_hand():
    logits = torch.tensor([[0.8, 0.2], [0.8, 0.2], [0.3, 0.7], [0.3, 0.7]]).log()
    got = TASK.scores(logits, torch.tensor([0, 1, 1, 1]), ["ece"])["ece"]
    assert got == pytest.approx(0.5 * abs(0.5 - 0.8) + 0.5 * abs(1.0 - 0.7))


def test_single_class():
    got = TASK.scores(torch.tensor([[2.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 0]), TASK.metrics)
    assert got["roc_auc"] is None
    assert got["mcc"] == 0.0
    assert got["accuracy"] == got["macro_f1"] == 1.0


def test_absent_class_does_not_lower_macro_f1():
    logits = torch.eye(3)[[0, 1, 0, 1]] * 5
    assert TASK.scores(logits, torch.tensor([0, 1, 0, 1]), ["macro_f1", "roc_auc"]) == {
        "macro_f1": 1.0,
        "roc_auc": 1.0,
    }


def test_selection_value_negates_losses():
    assert TASK.selection_value("nll", 2.0) == -2.0
    assert TASK.selection_value("accuracy", 0.5) == 0.5
    with pytest.raises(BadInput, match="did you mean 'accuracy'"):
        TASK.selection_value("acuracy", 0.0)


def test_loss_is_cross_entropy(case):
    logits, y = case
    by_hand = -np.log(logits.double().softmax(1).numpy()[np.arange(200), y]).mean()
    assert float(TASK.loss(logits, y)) == pytest.approx(by_hand, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 4])
def test_ties_match_sklearn(classes):
    for seed in range(30):
        rng = np.random.default_rng(seed)
        logits = torch.from_numpy(rng.integers(-1, 2, (25, classes))).float()  # few values, hence ties
        y = torch.from_numpy(np.r_[np.arange(classes), rng.integers(0, classes, 25 - classes)])
        probability, chosen = logits.double().softmax(1).numpy(), logits.argmax(1).numpy()
        result = Classify().scores(logits, y, ["mcc", "roc_auc"])
        assert result["mcc"] == pytest.approx(sk.matthews_corrcoef(y.numpy(), chosen), abs=1e-12)
        columns = [1] if classes == 2 else range(classes)
        areas = [sk.roc_auc_score(y.numpy() == c, probability[:, c]) for c in columns]
        assert result["roc_auc"] == pytest.approx(np.mean(areas), abs=1e-12)
    always = torch.tensor([[1.0, 0.0]] * 4)
    assert Classify().scores(always, torch.tensor([0, 1, 0, 1]), ["mcc", "roc_auc"]) == {"mcc": 0.0, "roc_auc": 0.5}
