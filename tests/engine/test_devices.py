import pytest
import torch
from torch import nn

from resprobe.engine.devices import device_of, exact_float32, pick_device, precision_dtype
from resprobe.errors import ResprobeError


def test_cpu_is_always_there():
    assert pick_device("cpu") == torch.device("cpu")


def test_auto_takes_an_accelerator_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for there, expected in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert pick_device("auto").type == expected


@pytest.mark.parametrize("name", ["", "tpu", "cuda:x"])
def test_unknown_device(name):
    with pytest.raises(ResprobeError, match="device: expected one of auto, cpu, cuda, mps, got"):
        pick_device(name)


@pytest.mark.parametrize("name", ["cuda:7", "mps"])
def test_device_that_is_not_there(monkeypatch, name):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ResprobeError, match="expected a device of this machine, got"):
        pick_device(name)


def test_precision():
    assert precision_dtype("bfloat16") is torch.bfloat16
    with pytest.raises(ResprobeError, match="expected one of float32, float64, bfloat16, got 'int8'"):
        precision_dtype("int8")


def test_device_of_a_model():
    assert device_of(nn.Linear(1, 1)).type == "cpu"
    assert device_of(nn.Linear(1, 1, device="meta")).type == "meta"
    assert device_of(nn.BatchNorm1d(1, affine=False).to("meta")).type == "meta"
    assert device_of(nn.Identity()).type == "cpu"


def test_tf32_is_off_inside_and_as_it_was_after_an_error(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)

    def fail():
        assert not torch.backends.cudnn.allow_tf32
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"), exact_float32():
        fail()
    assert torch.backends.cudnn.allow_tf32
