from dataclasses import replace

import numpy as np
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.align import one_domain, with_classes, without_held_out
from holdfast.data.splits import DomainRows, HeldOut, Part
from holdfast.data.synthetic import world


@pytest.fixture
def data():
    return world("vector", "none", domains=2, size=10, classes=2, seed=0)


def test_labels_are_recoded_to_the_classes_of_the_model(data):
    a, b = data.classes
    found = with_classes(data, ("zebra", b, a))
    assert [found.classes[y] for y in found.y] == [data.classes[y] for y in data.y]
    with pytest.raises(BadInput, match=rf"row \d+ has the label '{b}'.*\({a}\)"):
        with_classes(data, (a,))
    with pytest.raises(BadInput, match="row 3 has no label"):
        with_classes(replace(data, y=np.where(np.arange(20) == 2, -1, data.y)), data.classes)


def test_one_domain_is_selected_or_named(data):
    second = data.domains[1]
    assert one_domain(data, second, ()).domains == (second,)
    assert len(one_domain(data, second, ())) == 10
    with pytest.raises(BadInput, match=r"several domains .* --domain NAME"):
        one_domain(data, None, ())
    with pytest.raises(BadInput, match="no domain 'third'"):
        one_domain(data, "third", ())
    single = data.subset(data.rows_of(second))
    with pytest.raises(BadInput, match=rf"no domain 'third' in .*{second}.*--domain"):
        one_domain(single, "third", ())
    with pytest.raises(BadInput, match=f"already knows the domain '{second}'"):
        one_domain(single, None, (second,))
    single = replace(single, domain=np.zeros(10, dtype=np.int64), domains=("all",))
    assert one_domain(single, None, ()).domains == (data.name,)
    assert one_domain(single, "new", ()).domains == ("new",)
    with pytest.raises(BadInput, match="already knows the domain 'new'"):
        one_domain(single, "new", ("new",))


def test_held_out_examples_are_dropped(data):
    held = HeldOut.of(data, [Part(data.domains[0], np.arange(4))])
    left, count = without_held_out(data, held)
    assert (len(left), count) == (16, 4)
    assert without_held_out(data, None)[1] == 0
    with pytest.raises(BadInput, match="every example"):
        without_held_out(data.subset(np.arange(4)), held)


def test_splits_of_the_file_are_used(data):
    one = one_domain(data, data.domains[0], ())
    marked = replace(one, split=np.asarray([0] * 6 + [1] * 2 + [2] * 2))
    train, valid = DomainRows.of(marked, marked.domains[0], np.arange(len(marked)), start=100).train_valid(0.2, 0)
    assert (train.rows.tolist(), valid.rows.tolist()) == (list(range(100, 106)), [106, 107])
