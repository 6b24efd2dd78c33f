import argparse
import contextlib
import os
import pickle
import random
import time

import numpy as np
import pytest
import torch
from torch import nn

import resprobe
from resprobe.errors import ResprobeError
from resprobe.networks import build, parse_architecture


def state_dict():
    return build(parse_architecture("resnet8", width=4, shortcut="projection"), seed=0).state_dict()


@pytest.fixture(params=["zip", "pickle", "safetensors"])
def whole_file(request, write, tmp_path):
    """A file that can be read, in each format."""
    if request.param == "safetensors":
        pytest.importorskip("safetensors")
        from safetensors.torch import save_file

        save_file(state_dict(), tmp_path / "net.safetensors")
        return tmp_path / "net.safetensors"
    return write({"state_dict": state_dict()}, _use_new_zipfile_serialization=request.param == "zip")


class Executes:
    """Unpickling it would create a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def _message(path):
    with pytest.raises(ResprobeError, match="expected") as caught:
        resprobe.load(path)
    return str(caught.value)


class TestKinds:
    def test_every_format_opens(self, whole_file):
        assert resprobe.load(whole_file).architecture.name == "resnet8"

    @pytest.mark.parametrize(
        ("content", "what"),
        [
            (b"", "an empty file; download or copy it again"),
            (b"hello, I am a text", "a text file"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer; .* git lfs pull"),
            (b"<!DOCTYPE html><html>", "a web page or XML; download the file itself"),
            (bytes(range(1, 255)), "a file of an unknown kind"),
            (b"PK\x03\x04 cut", "an incomplete or damaged zip archive"),
            (b"\x1f\x8b\x08\x00", "a gzip archive; unpack it"),
            (b"\x93NUMPY\x01\x00", "a NumPy array"),
        ],
    )
    def test_what_it_is_instead(self, write, content, what):
        with pytest.raises(ResprobeError, match=f"expected a checkpoint, got {what}"):
            resprobe.load(write(content))

    def test_numpy_archive(self, tmp_path):
        import numpy as np

        np.savez(tmp_path / "images.npz", x=np.zeros(3))
        with pytest.raises(ResprobeError, match="got a NumPy archive; give it as --data npz:FILE"):
            resprobe.load(tmp_path / "images.npz")

    @pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
    def test_torchscript(self, tmp_path):
        torch.jit.script(nn.Linear(2, 2)).save(str(tmp_path / "script.pt"))
        with pytest.raises(
            ResprobeError, match="got a TorchScript archive, which holds a program; load it with torch.jit"
        ):
            resprobe.load(tmp_path / "script.pt")

    def test_pickled_module(self, write):
        with pytest.raises(ResprobeError, match=r"got a pickled module \(torch.nn.modules.linear.Linear\)"):
            resprobe.load(write(nn.Linear(2, 2)))

    @pytest.mark.filterwarnings("ignore::UserWarning")
    def test_quantised(self, write):
        tensor = torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 0, torch.qint8)
        with pytest.raises(ResprobeError, match="fc.weight: expected a float tensor, got a quantised one"):
            resprobe.load(write({"fc.weight": tensor}))

    def test_no_such_file(self, tmp_path):
        with pytest.raises(ResprobeError, match="expected a checkpoint file, got nothing at"):
            resprobe.load(tmp_path / "absent.pt")

    def test_folder(self, tmp_path):
        with pytest.raises(ResprobeError, match="expected a checkpoint file, got a folder"):
            resprobe.load(tmp_path)


class TestDamage:
    @pytest.mark.parametrize("tenths", range(1, 10))
    def test_cut_short(self, whole_file, tenths):
        whole = whole_file.read_bytes()
        whole_file.write_bytes(whole[: len(whole) * tenths // 10])
        with pytest.raises(ResprobeError, match="expected a checkpoint"):
            resprobe.load(whole_file)

    def test_flipped_bytes(self, whole_file):
        """It opens where nothing shows the flip (old formats have no checksums), or is refused in one line."""
        whole = whole_file.read_bytes()
        generator = random.Random(0)
        start = time.monotonic()
        messages = []
        for _ in range(40):
            damaged = bytearray(whole)
            for _ in range(generator.choice([1, 4, 64])):
                damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
            whole_file.write_bytes(bytes(damaged))
            with contextlib.suppress(ResprobeError):
                messages.append("")
                resprobe.load(whole_file)
                continue
            messages[-1] = _message(whole_file)
        refused = [message for message in messages if message]
        assert refused
        assert not any("\n" in message for message in refused)
        assert time.monotonic() - start < 30

    def test_one_flipped_bit_of_a_weight(self, write):
        path = write(state_dict())
        content = bytearray(path.read_bytes())
        position = bytes(content).index(state_dict()["conv1.weight"].numpy().tobytes())
        content[position] ^= 1
        path.write_bytes(bytes(content))
        with pytest.raises(ResprobeError, match="got a damaged zip archive; download or copy it again"):
            resprobe.load(path)

    @pytest.mark.parametrize("is_zip", [True, False])
    def test_nothing_is_executed(self, write, tmp_path, is_zip):
        trace = tmp_path / "trace"
        path = write({"state_dict": Executes(trace)}, _use_new_zipfile_serialization=is_zip)
        with pytest.raises(ResprobeError, match=r"got a Python object \(posix.system\), which could run code"):
            resprobe.load(path)
        assert not trace.exists()

    @pytest.mark.parametrize("protocol", range(6))
    def test_nothing_in_a_bare_pickle_is_executed(self, write, tmp_path, protocol):
        trace = tmp_path / "trace"
        with pytest.raises(ResprobeError, match="expected a checkpoint"):
            resprobe.load(write(pickle.dumps(Executes(trace), protocol)))
        assert not trace.exists()

    def test_nested_dict(self, write):
        content = state_dict()
        for _ in range(100):
            content = {"inner": content}
        start = time.monotonic()
        with pytest.raises(ResprobeError, match="expected a state_dict, got the entries inner"):
            resprobe.load(write(content))
        assert time.monotonic() - start < 5

    @pytest.mark.parametrize("content", [torch.zeros(3), 7, [1, 2], {}, {"a": 1}, {"state_dict": {"a": 1}}])
    def test_no_state_dict(self, write, content):
        with pytest.raises(ResprobeError, match="expected a (dict of tensors|state_dict)"):
            resprobe.load(write(content))


class TestTensors:
    @pytest.mark.parametrize(
        ("tensor", "message"),
        [
            (torch.full((4, 3, 3, 3), float("nan")), "expected finite weights, got NaN or infinity in conv1.weight"),
            (torch.full((4, 3, 3, 3), float("inf")), "expected finite weights, got NaN or infinity in conv1.weight"),
            (torch.ones(4, 3, 3, 3, dtype=torch.int32), "conv1.weight: expected floating point, got torch.int32"),
            (
                torch.ones(4, 3, 3, 3, dtype=torch.complex64),
                "conv1.weight: expected floating point, got torch.complex64",
            ),
            (torch.ones(0, 3, 3, 3), r"conv1.weight: expected numbers, got shape \(0, 3, 3, 3\)"),
            (torch.ones(1).expand(10**9), r"conv1.weight: expected a tensor that fits into the file"),
            (torch.ones(4, 3, 3, 3).to_sparse(), "conv1.weight: expected a dense tensor, got torch.sparse_coo"),
            (torch.ones(4, 3), "there is no convolution before the first block|the linear layers .* don't follow"),
            (torch.ones(5, 3, 3, 3), "the convolutions of block layer1.0 don't follow one another: 5 channels"),
        ],
    )
    def test_refused(self, write, tensor, message):
        with pytest.raises(ResprobeError, match=message) as caught:
            resprobe.load(write({**state_dict(), "conv1.weight": tensor}))
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
    def test_other_precisions(self, write, dtype):
        tensors = {key: tensor.to(dtype) if tensor.ndim else tensor for key, tensor in state_dict().items()}
        checkpoint = resprobe.load(write(tensors))
        assert {parameter.dtype for parameter in checkpoint.model.parameters()} == {torch.float32}
        name = str(dtype).removeprefix("torch.")
        assert f"net.pt: weights of type {name}, turned into float32" in checkpoint.notices


def test_pickle_of_another_program(write):
    message = _message(write(pickle.dumps({"epoch": 1}, protocol=4)))
    assert "got a pickle in another form than torch.save's; save the network again" in message


@pytest.mark.parametrize("accuracy", [np.float64(0.9), np.float32(0.9)], ids=type)
def test_settings_and_numbers_beside_the_tensors(write, accuracy):
    content = {"state_dict": state_dict(), "args": argparse.Namespace(lr=0.1), "acc": accuracy, "epoch": np.int64(7)}
    checkpoint = resprobe.load(write(content))
    assert checkpoint.claimed_error == pytest.approx(0.1)


def test_numbers_of_numpy_1(write):
    path = write({"state_dict": state_dict(), "acc": np.float64(0.9)}, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes().replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert resprobe.load(path).claimed_error == pytest.approx(0.1)


class Objects:
    """Unpickling it would make an object of numpy's type for any objects."""

    def __reduce__(self):
        return np.float64(0).__reduce__()[0], (np.dtype("O"), b"")


def test_objects_of_numpy_are_refused(write):
    assert "expected a checkpoint of tensors and plain values" in _message(write({"a": Objects()}))
