import importlib
import subprocess
import sys
import warnings

import pytest
import torch

import resprobe
from resprobe.engine import quick_convolutions
from resprobe.engine.kernels import availability
from resprobe.errors import ResprobeError, ResprobeWarning

# A study in a process that never had llvmlite, as where it isn't installed.
WITHOUT_LLVMLITE = """
import sys
sys.modules["llvmlite"] = None
import torch
torch.set_num_threads(1)
import resprobe
from resprobe.engine import quick_convolutions
from tests.conftest import randomised
quick_convolutions.WORTHWHILE = 0
batches = [(torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 10)]
net = randomised(resprobe.build(resprobe.parse_architecture("resnet8")))
for _ in range(2):
    result = resprobe.lesion(net, batches)
print(result.num_correct.values.tolist())
"""


@pytest.fixture(autouse=True)
def new_process(monkeypatch):
    """Let each test be as in a process of its own, in which kernels are worth their while."""
    monkeypatch.delenv("RESPROBE_KERNELS", raising=False)
    monkeypatch.setattr(availability, "_FAILURES", [])
    monkeypatch.setattr(availability, "_NOTICES", [])
    monkeypatch.setattr(quick_convolutions, "WORTHWHILE", 0)
    # kernels are for one thread, whatever this machine has
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    availability._obstacle_of_machine.cache_clear()
    yield
    availability._obstacle_of_machine.cache_clear()


@pytest.fixture
def kernels():
    """What kernels can do is seen where they can be had."""
    if availability.obstacle() is not None:
        pytest.skip(f"no kernels: {availability.obstacle()}")


def hide_llvmlite(monkeypatch):
    monkeypatch.setitem(sys.modules, "llvmlite", None)


def take_avx2(monkeypatch):
    binding = importlib.import_module("llvmlite.binding")
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: {"avx2": False, "fma": True})


def take_avx2_and_fma(monkeypatch):
    binding = importlib.import_module("llvmlite.binding")
    monkeypatch.setattr(binding, "get_host_cpu_features", dict)


def break_features(monkeypatch):
    def fail():
        raise RuntimeError("no such target")

    binding = importlib.import_module("llvmlite.binding")
    monkeypatch.setattr(binding, "get_host_cpu_features", fail)


def change_processor(monkeypatch):
    monkeypatch.setattr(availability.platform, "machine", lambda: "aarch64")


def break_compiling(monkeypatch):
    def fail(assembly):
        raise OSError("cannot allocate executable memory")

    from resprobe.engine.kernels import compiling, winograd

    monkeypatch.setattr(compiling, "_engine", fail)
    winograd.kernel.cache_clear()


OBSTACLES = {
    hide_llvmlite: "llvmlite can't be used (ModuleNotFoundError: import of llvmlite halted",
    take_avx2: "this processor has no AVX2;",
    take_avx2_and_fma: "this processor has no AVX2 and no FMA;",
    break_features: "llvmlite can't be used (RuntimeError: no such target)",
    change_processor: "they are for x86-64 processors with AVX2, this is aarch64",
    break_compiling: "llvmlite couldn't compile them (OSError: cannot allocate executable memory)",
}


@pytest.fixture
def net(make_net):
    return make_net("resnet8", width=16)


def counts(net, batches):
    return resprobe.lesion(net, batches).num_correct.values.tolist()


class TestObstacles:
    @pytest.mark.parametrize(("hinder", "reason"), OBSTACLES.items(), ids=lambda value: getattr(value, "__name__", ""))
    def test_the_same_counts_and_one_notice(self, kernels, monkeypatch, net, digits, hinder, reason):
        expected = counts(net, digits)
        hinder(monkeypatch)
        availability._obstacle_of_machine.cache_clear()
        monkeypatch.setattr(availability, "_NOTICES", [])
        with warnings.catch_warnings(record=True) as notices:
            warnings.simplefilter("always")
            assert [counts(net, digits) for _ in range(2)] == [expected, expected]
        texts = [str(notice.message) for notice in notices if notice.category is ResprobeWarning]
        assert len(texts) == 1
        assert "without resprobe's kernels" in texts[0]
        assert reason in texts[0]
        assert "the counts are the same" in texts[0]
        assert "\n" not in texts[0]

    def test_in_a_process_without_llvmlite(self):
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_LLVMLITE], capture_output=True, text=True, check=True, timeout=120
        )
        assert done.stderr.count("without resprobe's kernels: llvmlite can't be used") == 1
        assert done.stdout.startswith("[")

    def test_no_notice_where_kernels_would_not_be_used(self, monkeypatch, net, digits):
        hide_llvmlite(monkeypatch)
        monkeypatch.setattr(quick_convolutions, "WORTHWHILE", float("inf"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            counts(net, digits)

    def test_after_a_failure_compiling_is_not_tried_again(self, kernels, monkeypatch, net, digits):
        break_compiling(monkeypatch)
        with pytest.warns(ResprobeWarning, match="couldn't compile"):
            counts(net, digits)
        from resprobe.engine.kernels import compiling

        tried = []
        monkeypatch.setattr(compiling, "_engine", tried.append)
        counts(net, digits)
        assert tried == []


class TestSwitch:
    def test_off_goes_without_kernels_and_without_a_notice(self, kernels, monkeypatch, net, digits):
        expected = counts(net, digits)
        monkeypatch.setenv("RESPROBE_KERNELS", "0")
        monkeypatch.setattr(quick_convolutions, "_quickened", None)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert counts(net, digits) == expected

    @pytest.mark.parametrize("setting", ["", "1"])
    def test_on(self, kernels, monkeypatch, net, digits, setting):
        quickened = []
        monkeypatch.setattr(
            quick_convolutions, "_quickened", lambda unit, shapes, sizes: quickened.append(unit) or unit
        )
        monkeypatch.setenv("RESPROBE_KERNELS", setting)
        counts(net, digits)
        assert quickened

    def test_another_setting_is_refused(self, monkeypatch, net, digits):
        monkeypatch.setenv("RESPROBE_KERNELS", "off")
        with pytest.raises(ResprobeError, match="RESPROBE_KERNELS: expected 0 .* or 1 .*, got 'off'; set one of these"):
            counts(net, digits)
