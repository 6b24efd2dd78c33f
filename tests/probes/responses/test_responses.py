import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import resprobe
from resprobe import results
from resprobe.engine.moments import Moments
from resprobe.errors import ResprobeError


def in_float64(batches):
    return [(images.double(), labels) for images, labels in batches]


def outputs_of(net, batches, names):
    """Everything that some modules give, all images at once, by hooks of the test's own."""
    kept = {name: [] for name in names}
    hooks = [
        net.get_submodule(name).register_forward_hook(
            lambda module, inputs, output, name=name: kept[name].append(output.detach().clone().numpy())
        )
        for name in names
    ]
    with torch.no_grad():
        for images, _ in batches:
            net(images)
    for hook in hooks:
        hook.remove()
    return {name: np.concatenate(parts) for name, parts in kept.items()}


def assert_responses(result, net, batches, measured_at):
    outputs = outputs_of(net, batches, measured_at)
    assert result.measured_at.values.tolist() == measured_at
    np.testing.assert_allclose(result.response_mean, [outputs[name].mean() for name in measured_at], rtol=1e-10)
    np.testing.assert_allclose(result.response_std, [outputs[name].std() for name in measured_at], rtol=1e-10)
    assert result.num_responses.values.tolist() == [outputs[name].size for name in measured_at]


BLOCKS = [f"layer{stage}.0" for stage in (1, 2, 3)]


class TestAgainstNumpy:
    @pytest.mark.parametrize("name", ["resnet8", "plain8"])
    def test_after_normalisation(self, make_net, digits, name):
        net = make_net(name).double()
        batches = in_float64(digits)
        result = resprobe.responses(net, batches, precision="float64")
        assert result.layer.values.tolist() == ["conv1", *(f"{b}.conv{i}" for b in BLOCKS for i in (1, 2))]
        assert_responses(result, net, batches, ["bn1", *(f"{b}.bn{i}" for b in BLOCKS for i in (1, 2))])

    def test_projections_in_the_order_of_execution(self, make_net, digits):
        net = make_net("resnet8", shortcut="projection").double()
        batches = in_float64(digits)
        measured_at = ["bn1", "layer1.0.bn1", "layer1.0.bn2"]
        for block in BLOCKS[1:]:
            measured_at += [f"{block}.bn1", f"{block}.bn2", f"{block}.shortcut.1"]
        assert_responses(resprobe.responses(net, batches, precision="float64"), net, batches, measured_at)

    @pytest.mark.parametrize("name", ["resnet8", "preresnet8", "plain8"])
    def test_without_normalisation(self, make_net, digits, name):
        net = make_net(name, norm="none").double()
        batches = in_float64(digits)
        result = resprobe.responses(net, batches, precision="float64")
        assert_responses(result, net, batches, result.layer.values.tolist())

    def test_preactivation(self, make_net, digits):
        """The stem and each block's first convolution feed a normalisation, the block's second one an addition."""
        net = make_net("preresnet8").double()
        batches = in_float64(digits)
        measured_at = ["layer1.0.bn1", *(f"{b}.{part}" for b in BLOCKS for part in ("bn2", "conv2"))]
        assert_responses(resprobe.responses(net, batches, precision="float64"), net, batches, measured_at)

    def test_plain_preactivation_across_blocks(self, make_net, digits):
        net = make_net("preplain8").double()
        batches = in_float64(digits)
        measured_at = [
            "layer1.0.bn1",
            "layer1.0.bn2",
            "layer2.0.bn1",
            "layer2.0.bn2",
            "layer3.0.bn1",
            "layer3.0.bn2",
            "bn",
        ]
        assert_responses(resprobe.responses(net, batches, precision="float64"), net, batches, measured_at)

    def test_in_place_relu_behind_the_normalisation(self, digits):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(108, 10)
        )
        net = net.double().eval()
        batches = in_float64(digits)
        result = resprobe.responses(net, batches, precision="float64")
        assert float(result.response_mean[0]) < 0.1
        assert_responses(result, net, batches, ["1"])

    def test_shared_convolution_pools_its_calls(self, digits):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.one, self.two = nn.Conv2d(1, 1, 3, padding=1), nn.BatchNorm2d(1), nn.BatchNorm2d(1)
                self.head = nn.Linear(64, 10)

            def forward(self, x):
                return self.head(self.two(self.conv(self.one(self.conv(x)))).flatten(1))

        net = Net().double().eval()
        batches = in_float64(digits)
        result = resprobe.responses(net, batches, precision="float64")
        assert_responses(result, net, batches, ["conv"])

    def test_shared_normalisation_belongs_to_no_convolution_and_calls_give_the_order(self, digits):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.head, self.second = nn.Linear(64, 10), nn.Conv2d(1, 1, 3, padding=1)
                self.norm, self.first = nn.BatchNorm2d(1), nn.Conv2d(1, 1, 3, padding=1)

            def forward(self, x):
                return self.head(self.norm(self.second(self.norm(self.first(x)))).flatten(1))

        net = Net().double().eval()
        batches = in_float64(digits)
        assert_responses(resprobe.responses(net, batches, precision="float64"), net, batches, ["first", "second"])
        layers = resprobe.gradients(net, batches, precision="float64").layer.values.tolist()
        assert layers == ["first", "second", "head"]


class TestInvariance:
    @pytest.mark.parametrize("batch_size", [1, 7, 60])
    def test_batch_size_and_order(self, make_net, digits, batch_size):
        net = make_net("resnet8")
        images, labels = (torch.cat(parts) for parts in zip(*digits, strict=True))
        order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
        batches = list(zip(images[order].double().split(batch_size), labels[order].split(batch_size), strict=True))
        one = resprobe.responses(net, in_float64(digits), precision="float64")
        two = resprobe.responses(net, batches, precision="float64")
        for name in ("response_mean", "response_std"):
            np.testing.assert_allclose(one[name], two[name], rtol=1e-10, atol=1e-14)

    def test_float32_is_near_and_training_mode_irrelevant(self, make_net, digits):
        net = make_net("resnet8")
        one, two = (resprobe.responses(net, digits, precision=name) for name in ("float32", "float64"))
        np.testing.assert_allclose(one.response_std, two.response_std, rtol=1e-5)
        xr.testing.assert_equal(one, resprobe.responses(net.train(), digits))


class TestResult:
    def test_schema_and_places(self, make_net, digits, tmp_path):
        result = resprobe.responses(make_net("resnet8"), digits)
        results.check(result)
        results.save(result, tmp_path / "r.nc")
        assert results.open(tmp_path / "r.nc").identical(result)
        assert result.depth.values.tolist() == list(range(1, 8))
        assert result.stage.values.tolist() == [1, 1, 1, 2, 2, 3, 3]
        assert set(result.type.values) == {"Conv2d"}

    def test_any_model_with_convolutions(self, digits):
        class Opaque(nn.Module):
            def __init__(self):
                super().__init__()
                self.f = nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())

            def forward(self, x):
                return self.f(x) if x.isfinite().all() else x

        assert resprobe.responses(Opaque(), digits).layer.values.tolist() == ["f.0"]

    def test_what_is_not_finite_is_kept(self, make_net, digits):
        net = make_net("resnet8")
        net.layer3[0].conv2.weight.data[0] = 3e38
        net.layer3[0].bn2.weight.data[:] = 3e38
        result = resprobe.responses(net, digits)
        assert np.isfinite(result.response_std.values).tolist() == [True] * 6 + [False]

    def test_bad_input(self, make_net, digits):
        with pytest.raises(ResprobeError, match="expected convolutions, got none"):
            resprobe.responses(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), digits)
        with pytest.raises(ResprobeError, match="expected to run on images of shape"):
            resprobe.responses(make_net("resnet8", in_channels=3), digits)
        with pytest.raises(ResprobeError, match="expected float32 or float64"):
            resprobe.responses(make_net("resnet8"), digits, precision="bfloat16")


class TestMoments:
    @settings(max_examples=50)
    @given(
        parts=st.lists(st.integers(0, 20), min_size=1, max_size=6),
        offset=st.sampled_from([0.0, 1e6]),
        seed=st.integers(0, 100),
    )
    def test_pieces_equal_the_whole(self, parts, offset, seed):
        values = np.random.default_rng(seed).normal(offset, 1, sum(parts))
        moments = Moments()
        for piece in np.split(values, np.cumsum(parts)[:-1]):
            moments.add_tensor(torch.from_numpy(piece))
        assert moments.count == sum(parts)
        if moments.count:
            np.testing.assert_allclose(moments.mean, values.mean(), rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(moments.std, values.std(), rtol=1e-8, atol=1e-12)

    def test_large_offset_in_float32(self):
        """The difference of sums of squares would have no correct digit here."""
        moments = Moments()
        for sign in (-1, 1):
            moments.add_tensor(torch.full((1000,), 1e6 + sign))
        assert (moments.mean, moments.std) == (1e6, 1)

    def test_nothing(self):
        assert np.isnan([Moments().mean, Moments().std]).all()
