"""Messages of a command that was stopped."""

import sys

import pytest

from holdfast import cli


@pytest.mark.parametrize(("name", "resumes"), [("bench", False), ("predict", False), ("fit", True), ("sweep", True)])
def test_only_commands_with_checkpoints_mention_them(name, resumes, monkeypatch, capsys):
    def stop(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", stop)
    monkeypatch.setattr(sys, "argv", ["holdfast", "--verbose", name, "x"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    message = capsys.readouterr().err
    assert end.value.code == 130
    assert "stopped" in message
    assert ("checkpoint" in message) is resumes


def test_resumable_commands_exist():
    assert set(cli.RESUMABLE) <= {command.name for command in cli.app.registered_commands}
