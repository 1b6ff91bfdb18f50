"""Start-up without torch._dynamo, which only compilation needs and whose import takes one to two seconds."""

import inspect
import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
import torch.optim.optimizer as hooks


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


def constant(function: Callable[..., Any]) -> Any:
    """Let torch.compile evaluate calls of this function while it traces.

    Equal to `torch.compiler.assume_constant_result`, which imports the compiler and so takes more than a second.
    """
    function._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
    return function


def step_without_dynamo(optimizer: torch.optim.Optimizer) -> None:
    """Update the parameters without importing torch._dynamo, which the wrappers of `Optimizer.step` do.

    If hooks are registered, or in versions of torch without the attributes that hold them, `step` is called as usual.
    """
    names = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
    shared = [getattr(hooks, name, True) for name in names]
    own = [getattr(optimizer, name, True) for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")]
    if "torch._dynamo" in sys.modules or any(shared) or any(own):
        optimizer.step()
        return
    with torch.no_grad():
        _plain_step(type(optimizer))(optimizer)


@cache
def _plain_step(kind: type[torch.optim.Optimizer]) -> Callable[[torch.optim.Optimizer], Any]:
    return inspect.unwrap(kind.step)
