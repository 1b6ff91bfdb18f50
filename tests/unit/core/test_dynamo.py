"""Training and counting operations do not import what only compilation or audits need."""

import functools
import subprocess
import sys
from pathlib import Path

from holdfast.core.dynamo import skip_dynamo

STEP = """
import sys, torch
from functools import partial
from torch import nn
from holdfast.core.batch import DomainBatch
from holdfast.methods.erm import ERM
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.macs import count_macs
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.tasks.classify import Classify

x, y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
model = Model(nn.Linear(3, 5), NoNeck(5), nn.Linear(5, 2))
method = ERM(model, task=Classify(), optimizer=partial(Optimizer, OptimizerSettings()))
method.step(DomainBatch(x, y, (0,), (4,)))
method.load_state_dict(method.state_dict())
assert count_macs(model, x) == 3 * 5 + 5 * 2
print(sorted({"torch._dynamo", "sklearn", "transformers"} & set(sys.modules)))
"""
TABLE = """
import sys
from pathlib import Path
import holdfast
from holdfast.folders.format import load_model

rows = [f"{i % 7},{'ab'[i % 2]},{i % 3}" for i in range(60)]
Path("rows.csv").write_text("\\n".join(["x,domain,label", *rows]))
holdfast.fit("rows.csv", out="model", method="majority")
load_model(Path("model"))
print(sorted({"torch._dynamo", "transformers"} & set(sys.modules)))
"""


def _printed(code: str, folder: Path | None = None) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder)
    return done.stdout.strip()


def test_a_step_and_the_count_of_operations_do_not_import_dynamo() -> None:
    assert _printed(STEP) == "[]"


def test_a_model_of_a_table_needs_no_transformers(tmp_path) -> None:
    assert _printed(TABLE, tmp_path) == "[]"


def test_functions_without_a_wrapper_are_left_alone() -> None:
    def plain() -> int:
        return 1

    @functools.wraps(plain)
    def wrapper() -> int:
        return plain()

    skip_dynamo([plain])
    assert not vars(plain)
    skip_dynamo([wrapper])
    assert vars(plain).get("__dynamo_disable", plain) is plain
