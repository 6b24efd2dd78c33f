import copy
import gc
import json
import math
import resource

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import resprobe
from resprobe.errors import ResprobeError
from resprobe.probes.landscape import loss_lines

GENERATOR = torch.Generator().manual_seed(3)
IMAGES = torch.randn(8, 1, 8, 8, generator=GENERATOR, dtype=torch.float64)
LABELS = torch.tensor([0, 3, 7, 1, 9, 2, 2, 5])
BATCHES = [(IMAGES[:5], LABELS[:5]), (IMAGES[5:], LABELS[5:])]
DOUBLE = {"precision": "float64"}
# big enough for the change of the gradient to be far above rounding, small enough not to run away
STEPS = {"gradient": [0.01, 0.02, 0.05], "relative": [0.01, 0.03]}


def squares(outputs, labels):
    return 0.5 * ((outputs[:, 0] - labels) ** 2).mean()


class Weights(nn.Module):
    """A model whose output is its weights, whatever the images."""

    def __init__(self, shape):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape, generator=GENERATOR, dtype=torch.float64))

    def forward(self, x):
        return self.weight.flatten()


class TestClosedForm:
    @pytest.mark.parametrize("rule", ["gradient", "relative"])
    def test_quadratic(self, rule):
        model = Weights((3, 4))
        root = torch.randn(12, 12, generator=GENERATOR, dtype=torch.float64)
        hessian = root @ root.T
        result = resprobe.smoothness(
            model,
            BATCHES,
            loss=lambda outputs, labels: 0.5 * outputs @ hessian @ outputs,
            steps=STEPS[rule],
            step_rule=rule,
            **DOUBLE,
        )
        theta = model.weight.detach().flatten()
        g = hessian @ theta
        towards = -g
        if rule == "relative":
            rows = [-w.norm() * row / row.norm() for w, row in zip(model.weight.detach(), g.view(3, 4), strict=True)]
            towards = torch.cat(rows)
        beta = float((hessian @ towards).norm() / towards.norm())
        # at every step, not only the largest
        ratio = (result.grad_change / result.step_norm).isel(step=slice(1, None))
        np.testing.assert_allclose(ratio, beta, rtol=1e-6)
        np.testing.assert_allclose(result.effective_beta, beta, rtol=1e-6)
        np.testing.assert_allclose(result.grad_norm, float(g.norm()), rtol=1e-12)
        for t in result.step.values:
            at = theta + t * towards
            expected = float(0.5 * at @ hessian @ at)
            np.testing.assert_allclose(result.loss.sel(step=t), expected, rtol=1e-10)
            np.testing.assert_allclose(result.step_norm.sel(step=t), t * float(towards.norm()), rtol=1e-9, atol=1e-14)
        assert result.bn_mode.values.tolist() == ["none"]

    def test_least_squares(self):
        x = torch.randn(6, 4, generator=GENERATOR, dtype=torch.float64)
        model = nn.Linear(4, 1, bias=False, dtype=torch.float64)
        y = LABELS[:6]
        result = resprobe.smoothness(model, [(x, y)], loss=squares, steps=[0.1, 0.5, 1.0], **DOUBLE).squeeze()
        hessian = x.T @ x / 6
        w = model.weight.detach()[0]
        residual = x @ w - y
        g = x.T @ residual / 6
        curvature = float(g @ hessian @ g)
        expected = [
            float(0.5 * (residual**2).mean()) - t * float(g @ g) + 0.5 * t**2 * curvature for t in (0, 0.1, 0.5, 1)
        ]
        np.testing.assert_allclose(result.loss, expected, rtol=1e-10)
        assert float(result.effective_beta) == pytest.approx(float((hessian @ g).norm() / g.norm()), rel=1e-6)
        assert float(result.loss_range) == pytest.approx(max(expected) - min(expected), rel=1e-10)
        np.testing.assert_allclose(result.step_norm, np.array([0, 0.1, 0.5, 1]) * float(g.norm()), rtol=1e-10)


def by_hand(net, images, labels, mode, rule, t):
    """Loss, gradient and distance at step t, with an ordinary backward pass and in-place changes of a copy."""
    moved = copy.deepcopy(net).train(mode == "batch").requires_grad_(True)
    F.cross_entropy(moved(images), labels).backward()
    start = [p.grad.clone() for p in moved.parameters()]
    before = [p.detach().clone() for p in moved.parameters()]
    with torch.no_grad():
        for p in moved.parameters():
            if rule == "gradient":
                p -= t * p.grad
            elif p.ndim > 1:
                for w, g in zip(p, p.grad, strict=True):
                    w -= t * w.norm() * g / max(float(g.norm()), 1e-300)
    moved.zero_grad()
    loss = F.cross_entropy(moved(images), labels)
    loss.backward()
    change = math.sqrt(sum(float(((p.grad - s) ** 2).sum()) for p, s in zip(moved.parameters(), start, strict=True)))
    length = math.sqrt(
        sum(float(((p.detach() - b) ** 2).sum()) for p, b in zip(moved.parameters(), before, strict=True))
    )
    return float(loss.detach()), change, length


class TestNetworks:
    @pytest.mark.parametrize("rule", ["gradient", "relative"])
    @pytest.mark.parametrize("mode", ["running", "batch", "folded", "none"])
    def test_by_hand(self, make_net, mode, rule):
        net = make_net("resnet8", **({"norm": "none"} if mode == "none" else {})).double()
        result = resprobe.smoothness(
            net, BATCHES, bn_modes=[mode], steps=STEPS[rule], step_rule=rule, **DOUBLE
        ).squeeze("bn_mode")
        subject = resprobe.fold_norm(net) if mode == "folded" else net
        for batch, (images, labels) in enumerate(BATCHES):
            for t in STEPS[rule]:
                loss, change, length = by_hand(subject, images, labels, mode, rule, t)
                row = result.sel(batch=batch, step=t)
                assert float(row.loss) == pytest.approx(loss, rel=1e-9)
                assert float(row.grad_change) == pytest.approx(change, rel=1e-7)
                assert float(row.step_norm) == pytest.approx(length, rel=1e-9)

    def test_scale_of_a_normalised_convolution(self, make_net):
        net = make_net("resnet8").double()
        scaled = copy.deepcopy(net)
        with torch.no_grad():
            scaled.layer2[0].conv1.weight *= 10
        one, ten = (
            {
                rule: resprobe.smoothness(m, BATCHES, bn_modes=["batch"], steps=STEPS[rule], step_rule=rule, **DOUBLE)
                for rule in STEPS
            }
            for m in (net, scaled)
        )
        # eps is no longer negligible against the variance, so that the invariance isn't exact
        np.testing.assert_allclose(ten["relative"].loss, one["relative"].loss, rtol=1e-4)
        np.testing.assert_allclose(ten["gradient"].loss[..., 0], one["gradient"].loss[..., 0], rtol=1e-4)
        differs = abs(ten["gradient"].loss / one["gradient"].loss - 1).isel(step=-1)
        assert (differs > 4e-3).all()

    def test_exact_scale_invariance_without_epsilon(self, make_net):
        net = make_net("resnet8").double()
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eps = 1e-14
        scaled = copy.deepcopy(net)
        with torch.no_grad():
            scaled.layer2[0].conv1.weight *= 10
        options = {"bn_modes": ["batch"], "steps": [0.02, 0.1], "step_rule": "relative", **DOUBLE}
        one, ten = (resprobe.smoothness(m, BATCHES, **options).loss for m in (net, scaled))
        np.testing.assert_allclose(ten, one, rtol=1e-8)

    @pytest.mark.parametrize("name", ["resnet8", "preresnet8", "plain8"])
    def test_folded_is_the_same_function_with_other_parameters(self, make_net, name):
        batches = [(images.float(), labels) for images, labels in BATCHES]
        result = resprobe.smoothness(make_net(name), batches, steps=[0.05])
        assert result.bn_mode.values.tolist() == ["running", "batch", "folded"]
        start = result.loss.isel(step=0)
        np.testing.assert_allclose(start.sel(bn_mode="folded"), start.sel(bn_mode="running"), rtol=1e-5)
        beta = result.effective_beta
        assert float(abs(beta.sel(bn_mode="folded") / beta.sel(bn_mode="running") - 1).max()) > 0.01
        assert not np.allclose(start.sel(bn_mode="batch"), start.sel(bn_mode="running"), rtol=1e-2)

    def test_relative_line_is_the_same_when_folded(self, make_net):
        # folding multiplies each filter by a number; the rule moves by shares of the filter's own norm
        result = resprobe.smoothness(
            make_net("resnet8").double(), BATCHES, bn_modes=["running", "folded"], step_rule="relative", **DOUBLE
        )
        np.testing.assert_allclose(result.loss.sel(bn_mode="folded"), result.loss.sel(bn_mode="running"), rtol=1e-7)

    def test_frozen_parameters_stay(self, make_net):
        net = make_net("resnet8").double()
        net.requires_grad_(False)
        net.linear.requires_grad_(True)
        result = resprobe.smoothness(net, BATCHES[:1], bn_modes=["running", "folded"], steps=[0.5], **DOUBLE)
        features = {}
        with net.linear.register_forward_hook(lambda module, args, output: features.update(x=args[0])):
            logits = net(BATCHES[0][0])
        wrong = (logits.detach().softmax(1) - F.one_hot(BATCHES[0][1], 10)) / 5
        expected = math.sqrt(float((wrong.T @ features["x"]).norm() ** 2 + wrong.sum(0).norm() ** 2))
        np.testing.assert_allclose(result.grad_norm, expected, rtol=1e-9)

    def test_parts_that_get_no_gradient(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

            def forward(self, x):
                return self.used(x)

        x, y = torch.randn(5, 4, generator=GENERATOR), LABELS[:5] % 3
        for rule in STEPS:
            assert np.isfinite(resprobe.smoothness(Net(), [(x, y)], step_rule=rule).effective_beta).all()


class TestCost:
    def test_one_pass_for_each_step(self, make_net, monkeypatch):
        passes = []
        grad = torch.autograd.grad
        monkeypatch.setattr(torch.autograd, "grad", lambda *args, **options: passes.append(1) or grad(*args, **options))
        net = make_net("resnet8")
        calls = []
        net.register_forward_hook(lambda module, args, output: calls.append(len(args[0])))
        resprobe.smoothness(net.double(), BATCHES, steps=[0.1, 0.2, 0.3], bn_modes=["running", "batch"], **DOUBLE)
        assert calls == [5] * 8 + [3] * 8
        assert len(passes) == 16

    def test_memory_does_not_grow(self):
        net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 10)).double()
        batches = [(IMAGES[:2].repeat(200, 1, 1, 1), LABELS[:2].repeat(200))]

        def tensors():
            gc.collect()
            return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in kB

        for _ in range(5):
            resprobe.smoothness(net, batches, steps=[0.1], **DOUBLE)
        before = tensors(), peak()
        for _ in range(25):
            resprobe.smoothness(net, batches, steps=[0.1], **DOUBLE)
        assert tensors() == before[0]
        # the images of all calls are 5,000 kB
        assert peak() - before[1] < 4_000

    def test_progress(self, make_net, digits):
        seen = []
        options = {"steps": [0.1], "bn_modes": ["running"], "progress": lambda *at: seen.append(at)}
        resprobe.smoothness(make_net("resnet8"), digits, num_batches=2, **options)
        assert seen == [(25, 100), (50, 100), (75, 100), (100, 100)]
        seen.clear()
        resprobe.smoothness(make_net("resnet8"), digits, num_batches=None, **options)
        assert seen[-1] == (120, 120)


class TestNonFinite:
    def test_kept_and_counted(self):
        model = Weights((2, 2))
        with torch.no_grad():
            model.weight.fill_(1.0)

        def loss(outputs, labels):
            # from 1 down to 0 at t = 1, where the logarithm ends
            return (outputs - torch.log(outputs)).sum() + outputs.sum()

        result = resprobe.smoothness(model, BATCHES[:1], loss=loss, steps=[0.5, 1.0, 1.5], **DOUBLE).squeeze()
        assert np.isfinite(result.loss.values).tolist() == [True, True, False, False]
        assert result.loss.values[2] == math.inf
        assert math.isnan(result.loss.values[3])
        assert int(result.num_nonfinite) == 2
        assert not math.isfinite(float(result.effective_beta))
        assert not math.isfinite(float(result.loss_range))

    def test_not_finite_from_the_start(self, make_net, tmp_path):
        net = make_net("resnet8").double()
        with torch.no_grad():
            net.linear.weight[0, 0] = math.nan
        result = resprobe.smoothness(net, BATCHES, bn_modes=["running"], steps=[0.1], **DOUBLE)
        assert np.isnan(result.loss).all()
        assert result.num_nonfinite.values.tolist() == [[2, 2]]
        again = resprobe.results.open(resprobe.results.save(result, tmp_path / "s.nc"))
        assert again.identical(result)

    def test_no_gradient_at_all(self):
        result = resprobe.smoothness(
            Weights((2, 2)), BATCHES[:1], loss=lambda outputs, labels: 0 * outputs.sum(), steps=[1.0], **DOUBLE
        )
        assert np.isnan(result.effective_beta).all()
        assert (result.step_norm == 0).all()


class TestSeveral:
    @pytest.fixture
    def compared(self, make_net, digits):
        models = {"residual": make_net("resnet8"), "bare": make_net("plain8", norm="none")}
        return models, resprobe.smoothness(models, digits, steps=[0.05], num_batches=2)

    def test_checkpoint_dimension(self, compared, digits):
        models, result = compared
        assert result.loss.dims == ("checkpoint", "bn_mode", "batch", "step")
        assert result.checkpoint.values.tolist() == ["residual", "bare"]
        assert result.bn_mode.values.tolist() == ["running", "batch", "folded", "none"]
        for name, model in models.items():
            alone = resprobe.smoothness(model, digits, steps=[0.05], num_batches=2)
            same = result.sel(checkpoint=name, bn_mode=alone.bn_mode)
            for variable in alone.data_vars:
                np.testing.assert_array_equal(same[variable], alone[variable])
        resprobe.results.check(result)

    def test_modes_that_a_model_lacks(self, compared):
        _, result = compared
        lacking = result.sel(checkpoint="residual", bn_mode="none")
        assert np.isnan(lacking.loss).all()
        assert np.isnan(lacking.effective_beta).all()
        assert (lacking.num_nonfinite == -1).all()

    def test_single_has_no_such_dimension(self, make_net, digits):
        assert "checkpoint" not in resprobe.smoothness(make_net("resnet8"), digits, num_batches=1).dims


class TestBatches:
    def test_first_ones_and_their_sizes(self, make_net, digits):
        result = resprobe.smoothness(make_net("resnet8"), digits, bn_modes=["running"], steps=[0.1], num_batches=None)
        assert result.batch_images.values.tolist() == [25, 25, 10]
        assert result.attrs["num_images"] == 60
        some = resprobe.smoothness(make_net("resnet8"), digits, bn_modes=["running"], steps=[0.1], num_batches=2)
        assert some.attrs["num_images"] == 50
        np.testing.assert_array_equal(some.loss, result.loss.isel(batch=slice(2)))

    @pytest.mark.parametrize("outer", [torch.no_grad, torch.inference_mode])
    def test_inside_other_modes(self, make_net, digits, outer):
        net, options = make_net("resnet8"), {"num_batches": 1, "steps": [0.1]}
        with outer():
            inside = resprobe.smoothness(net, list(digits), **options)
        np.testing.assert_array_equal(inside.loss, resprobe.smoothness(net, list(digits), **options).loss)

    def test_model_that_works_in_place(self, digits):
        net = nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 10))
        result = resprobe.smoothness(net, digits, steps=[1e-9], num_batches=1).squeeze()
        assert float(result.loss[1]) == pytest.approx(float(result.loss[0]), rel=1e-5)


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"step_rule": "newton"}, "step_rule: expected gradient, relative, got 'newton'"),
            ({"steps": []}, "steps: expected increasing numbers above 0, got none"),
            ({"steps": [0.0]}, "steps: expected increasing numbers above 0, got 0.0"),
            ({"steps": [0.2, 0.1]}, "got 0.2, 0.1"),
            ({"steps": [-0.1, 0.1]}, "got -0.1, 0.1"),
            ({"steps": [0.1, math.inf]}, "got 0.1, inf"),
            ({"steps": [0.1, math.nan]}, "got 0.1, nan"),
            ({"bn_modes": ["frozen"]}, "bn_modes: expected running, batch, folded, none, got 'frozen'"),
            ({"bn_modes": ["none"]}, "bn_modes: expected some of running, batch, folded for ResidualNetwork, got none"),
            ({"bn_modes": []}, "bn_modes: expected some of running"),
            ({"num_batches": 0}, "num_batches: expected 1 or more, got 0"),
            ({"precision": "bfloat16"}, "precision: expected float32 or float64 for this analysis, got bfloat16"),
            ({"loss": lambda outputs, labels: outputs}, "loss: expected one number"),
            ({"loss": lambda outputs, labels: 3.0}, "loss: expected one number .* got float"),
        ],
    )
    def test_options(self, make_net, digits, options, message):
        with pytest.raises(ResprobeError, match=message) as error:
            resprobe.smoothness(make_net("resnet8"), digits, **options)
        assert "\n" not in str(error.value)

    def test_a_batch_of_one(self, make_net):
        batches = [(IMAGES[:2].float(), LABELS[:2]), (IMAGES[2:3].float(), LABELS[2:3])]
        message = r"batch: expected 2 images or more for batch statistics, got one \(image 2\)"
        with pytest.raises(ResprobeError, match=message):
            resprobe.smoothness(make_net("resnet8"), batches)
        assert resprobe.smoothness(make_net("resnet8"), batches, bn_modes=["running"]).sizes["batch"] == 2

    def test_models(self, make_net, digits):
        with pytest.raises(ResprobeError, match="models: expected at least one"):
            resprobe.smoothness({}, digits)
        models = {"bare": make_net("plain8", norm="none"), "net": make_net("resnet8")}
        with pytest.raises(ResprobeError, match="expected some of running, batch, folded for net, got none"):
            resprobe.smoothness(models, digits, bn_modes=["none"])
        with pytest.raises(ResprobeError, match="expected trainable parameters, got none"):
            resprobe.smoothness(make_net("resnet8").requires_grad_(False), digits)

    def test_no_stored_statistics(self, digits):
        norm = nn.BatchNorm2d(2, track_running_stats=False)
        net = nn.Sequential(nn.Conv2d(1, 2, 3), norm, nn.Flatten(), nn.Linear(72, 10))
        with pytest.raises(ResprobeError, match="normalisation 1: expected stored statistics for the mode running"):
            resprobe.smoothness(net, digits)
        assert resprobe.smoothness(net, digits, bn_modes=["batch"], num_batches=1).sizes["bn_mode"] == 1

    def test_labels(self, make_net):
        batches = [(IMAGES[:2].float(), torch.tensor([1, 2])), (IMAGES[2:4].float(), torch.tensor([3, 10]))]
        with pytest.raises(ResprobeError, match="expected 0 to 9, the model's classes, got 10 at image 3"):
            resprobe.smoothness(make_net("resnet8"), batches)


def test_settings(make_net, digits):
    result = resprobe.smoothness(make_net("resnet8"), digits, steps=[0.1, 0.3], num_batches=1)
    settings = json.loads(result.attrs["settings"])
    assert settings["steps"] == [0.1, 0.3]
    assert settings["batch_size"] == 25
    assert settings["num_batches"] == 1
    assert result.step.values.tolist() == [0, 0.1, 0.3]
    assert result.attrs["bn_mode"] == "running, batch, folded"
    assert result.attrs["step_rule"] == "gradient"
    assert "effective_beta" in result.attrs["definitions"]
    named = resprobe.smoothness(make_net("resnet8"), digits, loss=F.cross_entropy, steps=[0.1, 0.3], num_batches=1)
    assert json.loads(named.attrs["settings"])["loss"] == "cross_entropy"
    np.testing.assert_array_equal(named.loss, result.loss)


def test_norm():
    assert float(loss_lines.norm({"a": torch.tensor([3e30]), "b": torch.tensor([[4e30]])})) == pytest.approx(5e30)
