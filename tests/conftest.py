import functools
import gc
import os
import sys
from pathlib import Path

import pytest

# before torch is imported: each of the processes that share the tests has one thread, or they wait for each other
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import torch
from torch import nn

from resprobe.cli import app
from resprobe.data import open_data
from resprobe.engine.kernels.availability import obstacle
from resprobe.networks import build, parse_architecture
from tests.synthetic_results import synthetic_result

# how long an example takes says more about the machine than about the code
hypothesis.settings.register_profile("resprobe", deadline=None)
hypothesis.settings.load_profile("resprobe")

ROOT = Path(__file__).parents[1]
REAL = ROOT.parent / "shared" / "real"
LONGEST = "test_other_models.py"


class Unit(nn.Module):
    """A scalar residual unit: x + weight * x."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.scale = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.scale.weight, weight)

    def forward(self, x):
        return x + self.scale(x)


class ScalarNet(nn.Module):
    """Two residual units with the weights 2 and 3: (1 + 2)(1 + 3) = 12. Gives the logits (12 x, 0)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Unit(2.0), Unit(3.0)

    def forward(self, x):
        y = self.second(self.first(x))
        return torch.cat([y, torch.zeros_like(y)], dim=1)


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give normalisations the statistics and scales of a trained net, so that nothing is 0 or 1 by accident."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, low, high in (
                (module.running_mean, -0.5, 0.5),
                (module.running_var, 0.5, 2.0),
                (module.weight.data, 0.5, 1.5),
                (module.bias.data, -0.3, 0.3),
            ):
                tensor.uniform_(low, high, generator=generator)
    return model.eval()


@pytest.fixture
def command_line(monkeypatch, capfd):
    """Run the command line in this process; gives exit code, stdout, stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["resprobe", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            app.main()
        out, err = capfd.readouterr()
        return stop.value.code, out, err

    return run


def pytest_configure():
    # where kernels can't be had, the notice of it is no failure of everything that would use them
    if obstacle() is not None:
        os.environ.setdefault("RESPROBE_KERNELS", "0")


def pytest_collection_modifyitems(items):
    # two processes share the files: one that begins the longest last would let the other one wait
    items.sort(key=lambda item: item.path.name != LONGEST)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="this machine has no CUDA device"))


def pytest_collection_finish():
    # what was imported for the tests stays, and there is much of it: let no collection of garbage go through it again
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def digits_read_once():
    """Keep what scikit-learn reads from its text file: that takes longer than many a test."""
    import sklearn.datasets

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sklearn.datasets, "load_digits", functools.cache(sklearn.datasets.load_digits))
        yield


@pytest.fixture
def scalar_net():
    return ScalarNet()


@pytest.fixture(scope="session")
def make_net():
    """Build a small net for 8x8 grey images with normalisations as in a trained one."""

    def make(name: str = "resnet20", **options) -> nn.Module:
        options = {"in_channels": 1, "width": 4, **options}
        return randomised(build(parse_architecture(name, **options), seed=0))

    return make


@pytest.fixture
def digits():
    return open_data("digits", num_images=60, batch_size=25)


@pytest.fixture(scope="session")
def real():
    """The folder of real checkpoints and images, which is not part of the repository."""
    if not REAL.is_dir():
        pytest.skip("the folder shared/real with real checkpoints is not beside the repository")
    return REAL


@pytest.fixture
def make_result():
    """Give the builder of valid results: `make_result(analysis, num_units=9, **options)`."""
    return synthetic_result
