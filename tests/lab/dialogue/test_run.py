"""Dialogue in the catalog: defaults, supported methods, errors, and the same names in a new process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.train.analyses import choose_analyses
from holdfast.train.resolve import choose_methods
from holdfast.train.settings import make_spec
from holdfast.train.training_data import training_data
from holdfast.train.workspace import Workspace
from tests.talks import talks
from tests.unit.train.test_resolve import jobs_of

RESPOND = {"task": "respond"}


def test_task_has_its_own_defaults():
    data = talks(4)
    spec = make_spec(data, settings=RESPOND)
    assert (spec.encoder, spec.head, spec.metric, spec.tune) == ("dialogue-gru", "none", "nll", "full")
    assert make_spec(data, settings=RESPOND, metric="bleu2").metric == "bleu2"
    assert training_data(data, task="respond") is data
    with pytest.raises(BadInput, match=r"respnd.*respond"):
        make_spec(data, settings={"task": "respnd"})
    with pytest.raises(BadInput, match=r"dialogue-gru.*classify"):
        make_spec(data, encoder="dialogue-gru")
    with pytest.raises(BadInput, match=r"respond.*'stride'"):
        catalog.check_settings("tasks", "respond", {"stride": 5})


def test_unsuitable_methods_raise_and_are_left_out_of_all():
    workspace = Workspace(talks(4))
    names = choose_methods(["all"], make_spec(workspace.dataset, settings=RESPOND), workspace)
    assert "erm" in names
    assert any(note.startswith("coral left out") and "respond" in note for note in workspace.notes)
    with pytest.raises(BadInput, match=r"'lwf'.*respond"):
        jobs_of(workspace.dataset, methods=["erm", "lwf"], plan="stream", settings=RESPOND)


def test_all_analyses_support_dialogue():
    assert choose_analyses(["all"], ["respond"]) == catalog.buildable_names("analyses")


def test_a_new_process_finds_the_entries():
    code = (
        "from holdfast import catalog; import sys\n"
        "names = [('encoders', 'dialogue-gru'), ('tasks', 'respond'), ('heads', 'none'), ('analyses', 'slot-map')]\n"
        "print([catalog.lookup(*name).target.partition(':')[0] for name in names], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = ["lab.dialogue.encoder", "lab.dialogue.respond", "lab.dialogue.head", "lab.analysis.slots"]
    assert done.stdout.strip() == f"{modules} False"
