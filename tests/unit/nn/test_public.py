"""The public parts of holdfast.nn are importable, documented, and their examples run."""

import doctest
import inspect
import subprocess
import sys

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel

import holdfast
from holdfast.nn import __all__ as PUBLIC


def test_names_are_sorted_and_importable():
    assert sorted(PUBLIC) == PUBLIC
    assert all(issubclass(getattr(holdfast.nn, name), nn.Module) for name in PUBLIC)
    with pytest.raises(AttributeError, match="NoSuchMemory"):
        holdfast.nn.NoSuchMemory  # noqa: B018


def test_the_package_is_imported_lazily():
    code = "import sys, holdfast.nn; assert 'torch' not in sys.modules; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_in_the_docstring_runs(name):
    part = getattr(holdfast.nn, name)
    text = inspect.getdoc(part)
    names = {public: getattr(holdfast.nn, public) for public in PUBLIC}
    names |= {"torch": torch, "nn": nn, "BertConfig": BertConfig, "BertModel": BertModel, "graft": holdfast.graft}
    examples = doctest.DocTestParser().get_doctest(text, names, name, None, None)
    assert 2 <= len(examples.examples) <= 4
    torch.manual_seed(0)
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(examples)
    assert result.failed == 0
