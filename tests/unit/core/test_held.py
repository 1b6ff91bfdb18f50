"""A held value: the innermost, on this thread alone, and gone afterwards, also after an error."""

from __future__ import annotations

import threading

import pytest

from holdfast.core.tape import ScopedValue


def test_the_innermost_on_this_thread_alone_and_gone_afterwards():
    held, elsewhere = ScopedValue[str](), []
    with held.bind("outer"):
        with held.bind("inner"):
            assert held.value == "inner"
            other = threading.Thread(target=lambda: elsewhere.append(held.value))
            other.start()
            other.join()
        assert held.value == "outer"
        with pytest.raises(ZeroDivisionError), held.bind("failing"):
            raise ZeroDivisionError
        assert held.value == "outer"
    assert held.value is None
    assert elsewhere == [None]
