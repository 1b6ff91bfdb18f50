"""Worker of the tests of the process that forks workers."""

import os
import sys
from multiprocessing.connection import Connection


def main(descriptor: int) -> None:
    """Answer requests until one asks to end."""
    connection = Connection(descriptor)
    while True:
        kind, *names = connection.recv()
        if kind == "end":
            return
        if kind == "fail":
            os._exit(1)
        if kind == "pid":
            connection.send(os.getpid())
        if kind == "report":
            os.write(1, b"printed by a worker")
            loaded = [name for name in names if name in sys.modules]
            state = {"variables": dict(os.environ), "folder": os.getcwd(), "path": sys.path, "loaded": loaded}
            connection.send(state)
