"""Start-up without torch._dynamo, which only compilation needs and whose import takes one to two seconds."""

import sys
from collections.abc import Callable, Iterable
from typing import Any


def skip_dynamo(functions: Iterable[Callable[..., Any]]) -> None:
    """Let these functions of torch run without importing torch._dynamo.

    Torch excludes some functions from compilation: constructors and checkpoints of optimizers, and operations inside a
    dispatch mode. Their wrapper imports torch._dynamo at the first call and stores the excluded function as an
    attribute. This sets the attribute to the plain function, which is equivalent outside of compiled code. Where a
    version of torch has no such wrapper, or torch._dynamo is imported already, nothing changes.
    """
    if "torch._dynamo" in sys.modules:
        return
    for function in functions:
        original = getattr(function, "__wrapped__", None)
        if original is not None:
            vars(original).setdefault("__dynamo_disable", original)
