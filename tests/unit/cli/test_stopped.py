import sys

import pytest

from holdfast import cli


@pytest.mark.parametrize(("verb", "goes_on"), [("bench", False), ("predict", False), ("fit", True), ("sweep", True)])
def test_only_a_verb_that_keeps_checkpoints_says_that_it_goes_on(verb, goes_on, monkeypatch, capsys):
    def stopped(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", stopped)
    monkeypatch.setattr(sys, "argv", ["holdfast", "--verbose", verb, "x"])

    with pytest.raises(SystemExit) as end:
        cli.main()

    said = capsys.readouterr().err
    assert end.value.code == 130
    assert "stopped at once" in said
    assert ("goes on from the last checkpoint" in said) is goes_on


def test_the_verbs_that_keep_checkpoints_are_verbs():
    assert set(cli.KEEPS) <= {command.name for command in cli.app.registered_commands}
