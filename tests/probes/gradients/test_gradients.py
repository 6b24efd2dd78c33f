import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
import xarray as xr
from torch import nn

import resprobe
from resprobe import results
from resprobe.data import open_data
from resprobe.engine.averages import mean_and_sem
from resprobe.errors import ResprobeError

PER_IMAGE = ("activation_grad_norm", "grad_gain", "branch_ratio")


def in_float64(batches):
    return [(images.double(), labels) for images, labels in batches]


def norm(tensor):
    return float(tensor.detach().norm())


def blocks_of(net):
    return {
        f"{stage}.{index}": block
        for stage in ("layer1", "layer2", "layer3")
        for index, block in enumerate(getattr(net, stage))
    }


def watch_blocks(net, names):
    """Run blocks one image at a time through hooks that keep inputs and outputs with their gradients."""
    kept = {}

    def keep(name):
        def hook(module, inputs, output):
            for tensor in (inputs[0], output):
                tensor.retain_grad()
            kept[name] = inputs[0], output

        return hook

    return kept, [net.get_submodule(name).register_forward_hook(keep(name)) for name in names]


def image_by_image(net, batches, names):
    """What autograd gives for each image alone, in float64: gradients at modules, in a loop."""
    net = net.double()
    kept, hooks = watch_blocks(net, names)
    rows = []
    for images, labels in in_float64(batches):
        for image, label in zip(images, labels, strict=True):
            F.cross_entropy(net(image[None].requires_grad_()), label[None]).backward()
            rows.append([(norm(kept[name][0].grad), norm(kept[name][1].grad)) for name in names])
            net.zero_grad()
    for hook in hooks:
        hook.remove()
    return np.array(rows)


def weight_oracle(net, batches):
    """Gradient of each batch's mean loss by each weight, in float64, batch after batch, by plain autograd."""
    net = net.double()
    names = [name for name, parameter in net.named_parameters() if parameter.ndim > 1]
    rows, total, num_images = [], None, 0
    for images, labels in in_float64(batches):
        loss = F.cross_entropy(net(images), labels)
        found = torch.autograd.grad(loss, [net.get_parameter(name) for name in names])
        rows.append((len(labels), {name: norm(g) for name, g in zip(names, found, strict=True)}))
        parts = [len(labels) * g for g in found]
        total = parts if total is None else [a + b for a, b in zip(total, parts, strict=True)]
        num_images += len(labels)
    mean = {name: sum(n * row[name] for n, row in rows) / num_images for name in names}
    full = {name: norm(g) / num_images for name, g in zip(names, total, strict=True)}
    return mean, full


MODELS = {
    "post-activation": ("resnet14", {}),
    "projections": ("resnet14", {"shortcut": "projection"}),
    "pre-activation": ("preresnet14", {"shortcut": "projection"}),
    "without normalisation": ("resnet14", {"norm": "none"}),
    "pre-activation without normalisation": ("preresnet14", {"norm": "none"}),
    "plain": ("plain14", {}),
    "plain pre-activation": ("preplain14", {}),
}


class TestAgainstAutograd:
    @pytest.mark.parametrize("kind", MODELS)
    def test_units_image_by_image(self, make_net, kind):
        name, options = MODELS[kind]
        net = make_net(name, **options)
        batches = list(open_data("digits", num_images=7, batch_size=4))
        by = "block" if "plain" in name else None
        result = resprobe.gradients(net, batches, precision="float64", by=by)
        blocks = result.unit.values.tolist()
        assert len(blocks) == 6
        rows = image_by_image(net, batches, blocks)
        np.testing.assert_allclose(result.activation_grad_norm, rows[:, :, 1].mean(0), rtol=1e-10)
        np.testing.assert_allclose(result.grad_gain, (rows[:, :, 0] / rows[:, :, 1]).mean(0), rtol=1e-10)

    @pytest.mark.parametrize("kind", MODELS)
    def test_weights(self, make_net, digits, kind):
        name, options = MODELS[kind]
        net = make_net(name, **options)
        result = resprobe.gradients(net, in_float64(digits), precision="float64")
        mean, full = weight_oracle(net, digits)
        layers = result.layer.values.tolist()
        assert sorted(f"{layer}.weight" for layer in layers) == sorted(mean)
        np.testing.assert_allclose(result.weight_grad_norm, [mean[f"{name}.weight"] for name in layers], rtol=1e-10)
        np.testing.assert_allclose(
            result.full_weight_grad_norm, [full[f"{name}.weight"] for name in layers], rtol=1e-10
        )
        expected = [norm(net.get_parameter(f"{name}.weight")) for name in layers]
        np.testing.assert_allclose(result.weight_norm, expected, rtol=1e-10)
        np.testing.assert_allclose(result.grad_weight_ratio, result.weight_grad_norm / expected, rtol=1e-10)
        loss = sum(F.cross_entropy(net(x), y, reduction="sum").item() for x, y in in_float64(digits)) / 60
        np.testing.assert_allclose(result.baseline_loss, loss, rtol=1e-10)

    def test_branch_against_shortcut(self, make_net):
        net = make_net("resnet14", shortcut="projection").double()
        batches = in_float64(open_data("digits", num_images=6, batch_size=4))
        result = resprobe.gradients(net, batches, precision="float64")
        ratios = {name: [] for name in result.unit.values}
        x = torch.relu(net.bn1(net.conv1(torch.cat([images for images, _ in batches]))))
        for name, block in blocks_of(net).items():
            branch = block.bn2(block.conv2(torch.relu(block.bn1(block.conv1(x)))))
            ratios[name] = branch.flatten(1).norm(dim=1) / block.shortcut(x).flatten(1).norm(dim=1)
            x = block(x)
        expected = [ratios[name].mean().item() for name in result.unit.values]
        np.testing.assert_allclose(result.branch_ratio, expected, rtol=1e-10)
        assert np.isnan(resprobe.gradients(make_net("plain8"), batches).branch_ratio).all()

    def test_in_place_operations(self):
        """torchvision's blocks have in-place ReLUs and add with `+=`."""
        torch.manual_seed(0)
        net = torchvision.models.resnet18(num_classes=5).eval()
        generator = torch.Generator().manual_seed(0)
        batches = [(torch.randn(3, 3, 32, 32, generator=generator), torch.tensor([0, 3, 1]))]
        result = resprobe.gradients(net, batches, precision="float64")
        assert result.unit.values.tolist() == [f"layer{s}.{i}" for s in (1, 2, 3, 4) for i in (0, 1)]
        mean, _ = weight_oracle(net, batches)
        np.testing.assert_allclose(
            result.weight_grad_norm, [mean[f"{name}.weight"] for name in result.layer.values], rtol=1e-10
        )
        # a model that never works in place gives the gradients by its blocks
        for module in net.modules():
            if isinstance(module, nn.ReLU):
                module.inplace = False
        rows = image_by_image(net, batches, result.unit.values)
        np.testing.assert_allclose(result.activation_grad_norm, rows[:, :, 1].mean(0), rtol=1e-10)
        np.testing.assert_allclose(result.grad_gain, (rows[:, :, 0] / rows[:, :, 1]).mean(0), rtol=1e-10)
        assert result.layer.values.tolist()[:3] == ["conv1", "layer1.0.conv1", "layer1.0.conv2"]
        assert set(result.type.values) == {"Conv2d", "Linear"}

    def test_batch_statistics_are_those_of_a_model_in_training(self, make_net, digits):
        net = make_net("resnet14").double()
        batches = in_float64(digits)
        result = resprobe.gradients(net, batches, precision="float64", bn_mode="batch")
        assert result.attrs["bn_mode"] == "batch"
        assert json.loads(result.attrs["settings"])["bn_mode"] == "batch"
        net.train()
        mean, _ = weight_oracle(net, batches)
        np.testing.assert_allclose(
            result.weight_grad_norm, [mean[f"{name}.weight"] for name in result.layer.values], rtol=1e-10
        )
        kept, hooks = watch_blocks(net, result.unit.values)
        norms = []
        for images, labels in batches:
            F.cross_entropy(net(images), labels, reduction="sum").backward()
            norms.append([kept[name][1].grad.flatten(1).norm(dim=1) for name in result.unit.values])
            net.zero_grad()
        expected = [torch.cat(unit).mean().item() for unit in zip(*norms, strict=True)]
        np.testing.assert_allclose(result.activation_grad_norm, expected, rtol=1e-10)
        for hook in hooks:
            hook.remove()
        running = resprobe.gradients(net, batches, precision="float64")
        assert not np.allclose(running.activation_grad_norm, result.activation_grad_norm, rtol=0.01)


class LinearUnits(nn.Module):
    """Units x + w x on vectors, then the identity as head: closed forms for everything."""

    def __init__(self, *weights, size=3):
        super().__init__()
        self.units = nn.Sequential(*(self.Unit(weight, size) for weight in weights))

    def forward(self, x):
        return self.units(x)

    class Unit(nn.Module):
        def __init__(self, weight, size):
            super().__init__()
            self.scale = nn.Linear(size, size, bias=False)
            nn.init.eye_(self.scale.weight)
            self.scale.weight.data *= weight

        def forward(self, x):
            return x + self.scale(x)


class TestClosedForm:
    def test_linear_residual_net(self):
        """With p the softmax of (1 + 2)(1 + 3) x: g_n = p - y, g_{i-1} = (1 + w_i) g_i, dL/dW_i = g_i x_{i-1}^T."""
        net = LinearUnits(2.0, 3.0)
        x = torch.tensor([[0.1, -0.2, 0.05], [0.02, 0.1, -0.1]], dtype=torch.float64)
        y = torch.tensor([0, 2])
        result = resprobe.gradients(net, [(x, y)], precision="float64")
        g = torch.softmax(12 * x, 1) - F.one_hot(y, 3)
        size = g.norm(dim=1)
        np.testing.assert_allclose(result.activation_grad_norm, [4 * size.mean(), size.mean()], rtol=1e-12)
        np.testing.assert_allclose(result.grad_gain, [3, 4], rtol=1e-12)
        np.testing.assert_allclose(result.branch_ratio, [2, 3], rtol=1e-12)
        np.testing.assert_allclose(result.weight_norm, [2 * 3**0.5, 3 * 3**0.5], rtol=1e-12)
        by_first, by_second = (4 * g).T @ x / 2, g.T @ (3 * x) / 2
        np.testing.assert_allclose(result.weight_grad_norm, [by_first.norm(), by_second.norm()], rtol=1e-12)
        assert np.isnan(result.weight_grad_norm_sem).all()

    def test_unequal_batches_count_by_their_images(self):
        net = LinearUnits(1.0)
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        y = torch.tensor([0, 1, 2, 0, 1])
        one, other = ([(x[:4], y[:4])], [(x[4:], y[4:])])
        single = [resprobe.gradients(net, batches, precision="float64") for batches in (one, other)]
        both = resprobe.gradients(net, [*one, *other], precision="float64")
        means = np.array([float(result.weight_grad_norm[0]) for result in single])
        mean = (4 * means[0] + means[1]) / 5
        np.testing.assert_allclose(both.weight_grad_norm[0], mean, rtol=1e-12)
        weights = np.array([0.8, 0.2])
        sem = np.sqrt((weights**2 * (means - mean) ** 2).sum() * 2)
        np.testing.assert_allclose(both.weight_grad_norm_sem[0], sem, rtol=1e-12)

    def test_correlation_of_images(self):
        """The gradient of the first logit by x through relu(W x): W_0 masked; here by hand for three images."""

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.unit, self.head = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
                self.unit.weight.data = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
                self.head.weight.data = torch.tensor([[1.0, 1.0], [5.0, -3.0]])

            def forward(self, x):
                return self.head(torch.relu(x + self.unit(x)))

        # masks (1, 1), (1, 0), (0, 1): gradients 2 (1, 1), 2 (1, 0), 2 (0, 1)
        x = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0]])
        y = torch.tensor([0, 1, 0])
        batches = [(x[:2], y[:2]), (x[2:], y[2:])]
        result = resprobe.gradients(Net(), batches, noise=True, precision="float64")
        np.testing.assert_allclose(result.grad_correlation, [2 * 0.5**0.5 / 3], rtol=1e-12)
        assert "grad_correlation" not in resprobe.gradients(Net(), batches)

    def test_correlation_of_a_linear_net_is_one(self):
        x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
        result = resprobe.gradients(LinearUnits(1.0, 2.0), [(x, torch.zeros(6).long())], noise=True)
        np.testing.assert_allclose(result.grad_correlation, [1, 1], rtol=1e-6)

    def test_image_without_gradient_counts_in_no_gain(self):
        net = LinearUnits(2.0)
        x = torch.tensor([[1000.0, 0.0, 0.0], [0.1, 0.0, 0.0]])
        result = resprobe.gradients(net, [(x, torch.tensor([0, 0]))])
        assert result.num_zero_grad.values.tolist() == [1]
        assert result.num_nonfinite.values.tolist() == [0]
        np.testing.assert_allclose(result.grad_gain, [3], rtol=1e-6)
        assert float(result.activation_grad_norm[0]) > 0

    def test_what_is_not_finite_is_kept_and_counted(self):
        net = LinearUnits(1e30, 1e30)
        x = torch.tensor([[1e-40, 0.0, 0.0], [1.0, 0.0, 0.0]])
        result = resprobe.gradients(net, [(x, torch.tensor([0, 1]))])
        assert result.num_nonfinite.values.tolist() == [1, 1]
        assert not np.isfinite(result.activation_grad_norm).any()
        assert result.num_nonfinite_batches.values.tolist() == [1, 1]

    def test_gradients_too_small_for_squares_of_float32(self):
        """1e-25 squared is below the smallest float32."""
        net = LinearUnits(-1 + 1e-7, 0.0)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.double()
        head = nn.Linear(3, 3, bias=False)
        nn.init.eye_(head.weight)
        head.weight.data *= 1e-25
        x = torch.ones(2, 3)
        result = resprobe.gradients(nn.Sequential(net, head), [(x, torch.tensor([0, 1]))])
        np.testing.assert_allclose(result.activation_grad_norm[1], 1e-25 * (2 / 3) ** 0.5, rtol=1e-5)


class TestInvariance:
    @pytest.fixture
    def net(self, make_net):
        return make_net("resnet14")

    @pytest.mark.parametrize("batch_size", [1, 7, 60])
    def test_batch_size(self, net, digits, batch_size):
        one = resprobe.gradients(net, in_float64(digits), precision="float64", noise=True)
        other = open_data("digits", num_images=60, batch_size=batch_size)
        two = resprobe.gradients(net, in_float64(other), precision="float64", noise=True)
        for name in (*PER_IMAGE, "full_weight_grad_norm", "weight_norm", "grad_correlation", "baseline_loss"):
            np.testing.assert_allclose(one[name], two[name], rtol=1e-9)
        assert json.loads(one.attrs["settings"])["batch_size"] == 25

    def test_order_of_images(self, net, digits):
        images, labels = (torch.cat(parts) for parts in zip(*digits, strict=True))
        order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
        one = resprobe.gradients(net, [(images, labels)], precision="float64", noise=True)
        two = resprobe.gradients(net, [(images[order], labels[order])], precision="float64", noise=True)
        for name in (*PER_IMAGE, "weight_grad_norm", "grad_correlation"):
            np.testing.assert_allclose(one[name], two[name], rtol=1e-9)

    def test_float32_is_near(self, net, digits):
        one, two = (resprobe.gradients(net, digits, precision=name) for name in ("float32", "float64"))
        for name in (*PER_IMAGE, "weight_grad_norm"):
            np.testing.assert_allclose(one[name], two[name], rtol=1e-3)

    def test_training_mode_frozen_parameters_and_no_grad(self, net, digits):
        expected = resprobe.gradients(net, digits)
        net.train().requires_grad_(False)
        with torch.no_grad():
            xr.testing.assert_equal(expected, resprobe.gradients(net, digits))
        with torch.inference_mode():
            xr.testing.assert_equal(expected, resprobe.gradients(net, list(digits)))

    def test_stored_statistics_are_not_updated(self, net, digits):
        before = {name: buffer.clone() for name, buffer in net.named_buffers()}
        resprobe.gradients(net.train(), digits, bn_mode="batch")
        assert all(torch.equal(before[name], buffer) for name, buffer in net.named_buffers())


class TestOtherModels:
    def test_named_units_of_a_model_that_cannot_be_traced(self, make_net, digits):
        class Opaque(nn.Module):
            def __init__(self, net):
                super().__init__()
                self.net = net

            def forward(self, x):
                return self.net(x) if x.isfinite().all() else self.net(torch.zeros_like(x))

        net = make_net("preresnet14", shortcut="pad")
        known = resprobe.gradients(net, digits, precision="float64")
        names = [f"net.{name}" for name in known.unit.values]
        named = resprobe.gradients(Opaque(net), digits, precision="float64", units=names, shortcut="pad")
        for name in (*PER_IMAGE, "weight_grad_norm", "full_weight_grad_norm"):
            np.testing.assert_allclose(named[name], known[name], rtol=1e-9)
        assert named.layer.values.tolist() == [f"net.{name}" for name in known.layer.values]
        assert set(named.status.values) == {"ok"}
        branches = [f"{name}.conv2" for name in names]
        outside = resprobe.gradients(Opaque(net), digits, precision="float64", units=branches, shortcut="outside")
        np.testing.assert_allclose(outside.activation_grad_norm, known.activation_grad_norm, rtol=1e-9)
        assert np.isnan(outside.grad_gain).all()
        assert outside.num_nonfinite.values.tolist() == [0] * 6
        results.check(outside)

    def test_named_module_that_is_called_twice(self, make_net, digits):
        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.net, self.twice = make_net("resnet8"), nn.Linear(10, 10)

            def forward(self, x):
                return self.twice(self.twice(self.net(x)))

        result = resprobe.gradients(Twice(), digits, units=["twice", "net.layer1.0"], shortcut="identity")
        assert result.status.values.tolist() == ["it is called 2 times in one pass, not once", "ok"]
        assert np.isnan(result.activation_grad_norm.values).tolist() == [True, False]

    def test_units_off_the_trunk(self, digits):
        class Nested(nn.Module):
            """Two residual blocks side by side."""

            def __init__(self):
                super().__init__()
                self.left, self.right = LinearUnits(1.0, size=64), LinearUnits(2.0, size=64)
                self.head = nn.Linear(128, 10)

            def forward(self, x):
                x = x.flatten(1)
                return self.head(torch.cat([self.left(x), self.right(x)], 1))

        result = resprobe.gradients(Nested(), digits)
        assert result.status.values[0] == "its units are no chain; name modules with units= and shortcut="
        assert np.isnan(result.grad_gain).all()
        assert np.isfinite(result.weight_grad_norm).all()
        names = ["left.units.0", "right.units.0"]
        named = resprobe.gradients(Nested(), digits, units=names, shortcut="identity")
        assert np.isfinite(named.activation_grad_norm).all()
        np.testing.assert_allclose(named.branch_ratio, [1, 2], rtol=1e-5)

    def test_shared_and_unused_weights(self, digits):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.first = LinearUnits(0.5, size=64)
                self.head, self.unused = nn.Linear(64, 10), nn.Linear(3, 3)

            def forward(self, x):
                x = self.first(x.flatten(1))
                return self.head(torch.tanh(self.first(x)))

        net = Net()
        result = resprobe.gradients(net, in_float64(digits), precision="float64")
        assert result.layer.values.tolist()[-1] == "head" or "unused" in result.layer.values
        assert np.isnan(result.weight_grad_norm.sel(layer="unused"))
        net.double()
        images, labels = (torch.cat(parts) for parts in zip(*digits, strict=True))
        loss = F.cross_entropy(net(images.double()), labels)
        (gradient,) = torch.autograd.grad(loss, [net.first.units[0].scale.weight])
        np.testing.assert_allclose(
            result.full_weight_grad_norm.sel(layer="first.units.0.scale"), norm(gradient), rtol=1e-10
        )

    def test_subset_in_the_order_asked_for(self, make_net, digits):
        net = make_net("resnet14")
        every, some = resprobe.gradients(net, digits), resprobe.gradients(net, digits, units=["layer3.1", "layer1.0"])
        assert some.unit.values.tolist() == ["layer3.1", "layer1.0"]
        for name in PER_IMAGE:
            np.testing.assert_array_equal(some[name], every[name].sel(unit=["layer3.1", "layer1.0"]))


class TestResult:
    def test_schema_file_and_progress(self, make_net, digits, tmp_path):
        calls = []
        result = resprobe.gradients(
            make_net("resnet8"), digits, noise=True, progress=lambda done, total: calls.append((done, total))
        )
        results.check(result)
        results.save(result, tmp_path / "g.nc")
        assert results.open(tmp_path / "g.nc").identical(result)
        assert calls == [(25, 60), (50, 60), (60, 60)]
        assert result.layer_depth.values.tolist() == list(range(1, 9))
        assert result.layer_stage.values.tolist() == [1, 1, 1, 2, 2, 3, 3, 3]
        assert int(result.num_images) == 60

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"bn_mode": "folded"}, "bn_mode: expected one of running, batch, got 'folded'"),
            ({"precision": "bfloat16"}, "precision: expected float32 or float64 for this analysis, got bfloat16"),
            ({"precision": "half"}, "precision: expected one of float32"),
            ({"units": ["layer1.7"]}, "unit: expected one of"),
        ],
    )
    def test_bad_options(self, make_net, digits, options, message):
        with pytest.raises(ResprobeError, match=message):
            resprobe.gradients(make_net("resnet8"), digits, **options)

    def test_one_image_has_no_batch_statistics(self, make_net):
        data = open_data("digits", num_images=11, batch_size=5)
        with pytest.raises(
            ResprobeError, match=r"expected 2 images or more for batch statistics, got one \(image 10\)"
        ):
            resprobe.gradients(make_net("resnet8"), data, bn_mode="batch")
        resprobe.gradients(make_net("resnet8", norm="none"), data, bn_mode="batch")

    def test_bad_label(self, make_net):
        with pytest.raises(ResprobeError, match="got 12 at image 1"):
            resprobe.gradients(make_net("resnet8"), [(torch.zeros(2, 1, 8, 8), torch.tensor([0, 12]))])

    @pytest.mark.gpu
    def test_on_a_gpu(self, make_net, digits):
        net = make_net("resnet14")
        on_cpu = resprobe.gradients(net, digits, noise=True)
        on_gpu = resprobe.gradients(net.cuda(), digits, noise=True)
        for name in (*PER_IMAGE, "weight_grad_norm", "full_weight_grad_norm", "grad_correlation"):
            np.testing.assert_allclose(on_gpu[name], on_cpu[name], rtol=1e-3, atol=1e-4)


class TestMeanAndSem:
    def test_equal_batches(self):
        values = np.random.default_rng(0).normal(size=(8, 3))
        mean, sem = mean_and_sem(values * 10, np.full((8, 3), 10))
        np.testing.assert_allclose(mean, values.mean(0))
        np.testing.assert_allclose(sem, values.std(0, ddof=1) / 8**0.5)

    def test_missing_batches(self):
        mean, sem = mean_and_sem([[2.0, 0.0], [4.0, 6.0], [0.0, 0.0]], [[2, 0], [2, 3], [0, 0]])
        np.testing.assert_allclose(mean, [1.5, 2])
        np.testing.assert_allclose(sem, [0.5, np.nan])
