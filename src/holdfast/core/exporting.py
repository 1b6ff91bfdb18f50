"""Whether a call is being recorded by torch.export: shapes are not known then, and nothing may depend on values."""

from __future__ import annotations

import torch


def exporting() -> bool:
    """Torch 2.11, unlike 2.13, tells a call that is only compiled the same, though that is meant for export alone."""
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()
