import copy
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import xarray as xr
from torch import nn

import resprobe
from resprobe.errors import ResprobeError, ResprobeWarning


def measured(net, batches):
    """Counts and mean loss by an ordinary forward pass."""
    right, loss, number = 0, 0.0, 0
    with torch.no_grad():
        for images, labels in batches:
            logits = net(images)
            right += int((logits.argmax(1) == labels).sum())
            loss += float(F.cross_entropy(logits, labels, reduction="sum"))
            number += len(labels)
    return right, loss / number


class Other(nn.Module):
    """A normalisation written out: minus the mean, over the root, times gamma, plus beta."""

    def __init__(self, norm, replacement, data):
        super().__init__()
        self.norm, self.replacement = norm, replacement
        if replacement == "recomputed":
            self.mean, self.var = data.mean((0, 2, 3)), data.var((0, 2, 3), unbiased=False)

    def forward(self, x):
        gamma, beta = (p[None, :, None, None] for p in (self.norm.weight, self.norm.bias))
        if self.replacement == "affine":
            return gamma * x + beta
        if self.replacement == "batch":
            mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
        else:
            mean, var = self.mean, self.var
        mean, var = mean[None, :, None, None], var[None, :, None, None]
        return gamma * (x - mean) / (var + self.norm.eps).sqrt() + beta


@pytest.fixture
def batches(digits):
    return [(images.double(), labels) for images, labels in digits]


@pytest.mark.parametrize("name", ["resnet8", "preresnet8"])
@pytest.mark.parametrize("replacement", ["affine", "batch", "recomputed"])
def test_by_hand(make_net, batches, replacement, name):
    net = make_net(name).double()
    result = resprobe.norm_lesion(net, batches, replacement=replacement, precision="float64")
    # in the order in which they run
    called, hooks = [], []
    for layer, module in net.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            hooks.append(
                module.register_forward_hook(lambda m, args, out, layer=layer: called.append((layer, args[0])))
            )
    net(torch.cat([images for images, _ in batches]))
    for hook in hooks:
        hook.remove()
    assert result.layer.values.tolist() == [layer for layer, _ in called]
    for layer, data in called:
        changed = copy.deepcopy(net)
        parent, _, attribute = layer.rpartition(".")
        norm = Other(net.get_submodule(layer), replacement, data.detach())
        setattr(changed.get_submodule(parent), attribute, norm)
        right, loss = measured(changed, batches)
        row = result.sel(layer=layer)
        assert int(row.num_correct) == right
        assert float(row.loss) == pytest.approx(loss, rel=1e-9)
    right, loss = measured(net, batches)
    assert int(result.baseline_num_correct) == right
    assert float(result.baseline_loss) == pytest.approx(loss, rel=1e-9)


def test_result(make_net, digits):
    result = resprobe.norm_lesion(make_net("resnet8"), digits)
    resprobe.results.check(result)
    assert result.num_correct.dtype == np.int64
    np.testing.assert_allclose(result.error, 1 - result.num_correct / 60)
    changed = result.num_newly_right - result.num_newly_wrong
    np.testing.assert_array_equal(result.num_correct, result.baseline_num_correct + changed)
    assert (result.error_low <= result.error).all()
    assert (result.error <= result.error_high).all()
    assert result.depth.values.tolist() == list(range(1, 8))
    assert result.stage.values.tolist() == [1, 1, 1, 2, 2, 3, 3]
    assert result.num_channels.values.tolist() == [4, 4, 4, 8, 8, 16, 16]
    assert set(result.type.values) == {"BatchNorm2d"}
    settings = json.loads(result.attrs["settings"])
    assert (settings["replacement"], settings["batch_size"]) == ("affine", 25)


def test_recomputed_statistics_do_not_depend_on_batches(make_net, digits):
    net = make_net("resnet8")
    images, labels = (torch.cat(part) for part in zip(*digits, strict=True))
    one, other = (
        resprobe.norm_lesion(net.double(), batches, replacement="recomputed", precision="float64")
        for batches in (digits, [(images, labels)])
    )
    np.testing.assert_allclose(one.loss, other.loss, rtol=1e-6)


def test_recomputing_repairs_stale_statistics(make_net, digits):
    net = make_net("resnet8")
    result = resprobe.norm_lesion(net, digits, replacement="recomputed")
    with torch.no_grad():
        net.layer2[0].bn1.running_mean += 20
    broken = resprobe.norm_lesion(net, digits, replacement="recomputed")
    assert abs(float(broken.baseline_loss) - float(result.baseline_loss)) > 0.1
    # the statistics of this layer alone were stale
    repaired, before = (float(r.loss.sel(layer="layer2.0.bn1")) for r in (broken, result))
    assert repaired == pytest.approx(before, rel=1e-5)


def test_layers_without_affine_or_statistics_and_shared_ones(digits):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 3)
            self.bare = nn.BatchNorm2d(2, affine=False)
            self.fresh = nn.BatchNorm2d(2, track_running_stats=False)
            self.twice = nn.BatchNorm2d(2)
            self.unused = nn.BatchNorm2d(2)
            self.alias = self.twice
            self.linear = nn.Linear(2, 10)

        def forward(self, x):
            x = self.twice(self.fresh(self.bare(self.conv(x))))
            return self.linear(self.alias(x.relu()).mean((2, 3)))

    net = Net().eval()
    with torch.no_grad():
        net.twice.running_mean += 1
        net.bare.running_mean += 0.5
        result = resprobe.norm_lesion(net, digits)
        assert result.layer.values.tolist() == ["bare", "fresh", "twice"]
        changed = copy.deepcopy(net)
        changed.twice = changed.alias = nn.Identity()
        assert float(result.loss.sel(layer="twice")) == pytest.approx(measured(changed, digits)[1], rel=1e-5)
        changed = copy.deepcopy(net)
        changed.bare = nn.Identity()
        assert float(result.loss.sel(layer="bare")) == pytest.approx(measured(changed, digits)[1], rel=1e-5)


def test_not_finite_is_kept(make_net, digits):
    net = make_net("resnet8")
    with torch.no_grad():
        net.conv1.weight *= 1e30
        net.bn1.running_mean *= 1e30
        net.bn1.running_var.fill_(3e38)
        net.bn1.weight.fill_(1e-10)
    result = resprobe.norm_lesion(net, digits)
    assert np.isfinite(result.baseline_loss)
    assert not np.isfinite(result.loss.sel(layer="bn1")) or float(result.loss.sel(layer="bn1")) > 1e6


class TestErrors:
    def test_replacement(self, make_net, digits):
        with pytest.raises(ResprobeError, match="replacement: expected affine, batch, recomputed, got 'none'"):
            resprobe.norm_lesion(make_net("resnet8"), digits, replacement="none")

    def test_no_normalisation(self, make_net, digits):
        with pytest.raises(ResprobeError, match="model ResidualNetwork: expected batch normalisations, got none"):
            resprobe.norm_lesion(make_net("resnet8", norm="none"), digits)

    def test_a_batch_of_one(self, make_net):
        batches = [(torch.zeros(2, 1, 8, 8), torch.tensor([0, 1])), (torch.zeros(1, 1, 8, 8), torch.tensor([0]))]
        with pytest.raises(ResprobeError, match=r"expected 2 images or more .* got one \(image 2\)"):
            resprobe.norm_lesion(make_net("resnet8"), batches, replacement="batch")

    def test_batches_that_end(self, make_net, digits):
        with pytest.raises(ResprobeError, match="batches: expected some that can be read twice, got an iterator"):
            resprobe.norm_lesion(make_net("resnet8"), iter(list(digits)), replacement="recomputed")
        assert resprobe.norm_lesion(make_net("resnet8"), iter(list(digits))).num_images == 60


@pytest.mark.parametrize("replacement", ["affine", "recomputed", "batch"])
def test_memory_runs_out(digits, replacement):
    class Large(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.linear = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(2, 10)
            self.calls, self.failing = 0, ()

        def forward(self, x):
            self.calls += 1
            if self.calls in self.failing:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return self.linear(self.norm(self.conv(x)).relu().mean((2, 3)))

    net = Large().eval()
    expected = resprobe.norm_lesion(net, digits, replacement=replacement)
    # one call finds the layers, some recompute statistics; then the intact model and the replaced one take turns
    before = 1 + (len(list(digits)) if replacement == "recomputed" else 0)
    net.failing = (before + 2,)
    if replacement == "batch":
        with pytest.raises(torch.OutOfMemoryError):
            resprobe.norm_lesion(net, digits, replacement=replacement)
        return
    with pytest.warns(ResprobeWarning, match="cpu has no room for 25 images at a time; going on with 12"):
        result = resprobe.norm_lesion(net, digits, replacement=replacement)
    for name in ("num_correct", "num_newly_wrong", "num_newly_right", "baseline_num_correct"):
        xr.testing.assert_equal(result[name], expected[name])
    xr.testing.assert_allclose(result.loss, expected.loss)
