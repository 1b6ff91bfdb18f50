"""Importing any module of the package does not need modules that exist only on Unix."""

import subprocess
import sys

IMPORT_ALL = """
import builtins, pkgutil
UNIX_ONLY = {"fcntl", "resource", "pwd", "grp", "termios"}
plain = builtins.__import__

def restricted(name, globals=None, *args, **options):
    if name in UNIX_ONLY and str((globals or {}).get("__name__")).startswith("holdfast"):
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)
    return plain(name, globals, *args, **options)

builtins.__import__ = restricted
import holdfast
for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
    if not module.name.endswith("__main__"):
        try:
            __import__(module.name)
        except ModuleNotFoundError as error:
            if error.name in UNIX_ONLY:
                print(f"{module.name} needs {error.name}")
"""


def test_no_import_needs_a_unix_only_module():
    result = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=False)
    assert (result.stdout, result.returncode) == ("", 0), result.stderr
