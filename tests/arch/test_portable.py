"""Holdfast runs where POSIX-only modules and functions are missing, as on Windows."""

import ast
import subprocess
import sys
import textwrap

from tests.arch.sources import ROOT, sources

POSIX = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "posix", "readline", "curses"}
FUNCTIONS = {f"os.{name}" for name in ("fork", "killpg", "getpgid", "setsid", "getuid", "statvfs")}
FUNCTIONS |= {f"signal.{name}" for name in ("SIGKILL", "SIGALRM", "SIGHUP", "SIGUSR1")}
GUARDED = {
    "core/forking.py",  # forks workers on Linux only
}

# other packages may import these modules, since they have their own versions for each system
SIMULATION = """
    import builtins, sys, tempfile
    from pathlib import Path

    load, refused = builtins.__import__, set()

    def without_posix(name, globals=None, *rest, **named):
        if name in POSIX and str((globals or {}).get("__file__", "")).startswith(str(ROOT)):
            refused.add(name)
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return load(name, globals, *rest, **named)

    builtins.__import__ = without_posix

    from holdfast import DomainClassifier
    from holdfast.serve.connections import connection_class
    rows = [[float(i % 2), float(i)] for i in range(24)]
    with tempfile.TemporaryDirectory() as folder:
        classifier = DomainClassifier("erm", encoder="mlp", steps=2, batch=2, device="cpu")
        classifier.fit(rows, ["low", "high"] * 12, domains=["a", "a", "b", "b"] * 6)
        classifier.save_pretrained(Path(folder) / "model")
        assert DomainClassifier.from_pretrained(Path(folder) / "model").predict(rows[:2]).shape == (2,)
    sys.stdout.write(f"{connection_class().limit > 0} {sorted(refused)}")
"""


def test_modules_import_and_use_nothing_that_only_posix_has():
    for each in sources():
        for node in each.tree.body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not POSIX & {name.partition(".")[0] for name in names}, each.name
        used = {ast.unparse(node) for node in each.nodes if isinstance(node, ast.Attribute)}
        assert not FUNCTIONS & used or each.name in GUARDED, each.name


def test_models_are_trained_and_saved_without_posix_modules():
    setup = f"import pathlib\nPOSIX = {POSIX!r}\nROOT = pathlib.Path({str(ROOT)!r})\n"
    code = setup + textwrap.dedent(SIMULATION)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "True ['resource']"
