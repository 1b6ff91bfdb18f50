"""Whether a call is being recorded by torch.export: shapes are not known then, and nothing may depend on values."""

from __future__ import annotations

import torch


def exporting() -> bool:
    """Before torch 2.13 a call that is only compiled is told the same by torch, though it is meant for export alone."""
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()
