"""Rank and number of processes from the environment of a launcher."""

from holdfast.core import processes

FOUR = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
FOUR |= {"MASTER_ADDR": "a", "MASTER_PORT": "1"}


def values():
    names = (processes.world_size, processes.rank, processes.local_world_size, processes.local_rank, processes.is_first)
    return tuple(function() for function in names)


def test_the_environment_of_a_launcher_decides(monkeypatch):
    for name in FOUR:
        monkeypatch.delenv(name, raising=False)
    assert values() == (1, 0, 1, 0, True)
    for name, value in FOUR.items():
        monkeypatch.setenv(name, value)
    assert values() == (4, 3, 2, 1, False)
    monkeypatch.delenv("MASTER_ADDR")  # RANK without an address was set by another program
    assert values() == (1, 0, 1, 0, True)
