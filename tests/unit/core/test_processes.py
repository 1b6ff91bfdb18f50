from holdfast.core import processes

FOUR = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
FOUR |= {"MASTER_ADDR": "a", "MASTER_PORT": "1"}


def told():
    names = (processes.world_size, processes.rank, processes.local_world_size, processes.local_rank, processes.is_first)
    return tuple(each() for each in names)


def test_a_launcher_says_which_process_this_is(monkeypatch):
    for name in FOUR:
        monkeypatch.delenv(name, raising=False)
    assert told() == (1, 0, 1, 0, True)
    for name, value in FOUR.items():
        monkeypatch.setenv(name, value)
    assert told() == (4, 3, 2, 1, False)
    monkeypatch.delenv("MASTER_ADDR")  # a variable of that name alone is someone else's
    assert told() == (1, 0, 1, 0, True)
