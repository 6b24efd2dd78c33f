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
from resprobe.probes.surfaces import surfaces

GENERATOR = torch.Generator().manual_seed(5)
IMAGES = torch.randn(8, 1, 8, 8, generator=GENERATOR, dtype=torch.float64)
LABELS = torch.tensor([0, 3, 7, 1, 9, 2, 2, 5])
BATCHES = [(IMAGES[:5], LABELS[:5]), (IMAGES[5:], LABELS[5:])]
DOUBLE = {"precision": "float64"}


class Weights(nn.Module):
    """A model whose output is its weights, whatever the images."""

    def __init__(self, shape):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape, generator=GENERATOR, dtype=torch.float64))

    def forward(self, x):
        return self.weight.flatten()


def small_net():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 10))


def squares(outputs, labels):
    return 0.5 * ((outputs[:, 0] - labels) ** 2).mean()


def drawn(model, *, seed=0, draw=0, axis=0):
    """The documented direction, filter by filter: normal numbers, each filter as long as the trained one."""
    rng = np.random.default_rng([seed, draw, axis])
    direction = {}
    for name, parameter in model.named_parameters():
        direction[name] = torch.zeros_like(parameter.detach())
        if parameter.ndim > 1:
            for to, w, d in zip(
                direction[name], parameter.detach(), rng.standard_normal(tuple(parameter.shape)), strict=True
            ):
                to.copy_(torch.from_numpy(d) * (math.sqrt(float((w**2).sum())) / math.sqrt(float((d**2).sum()))))
    return direction


def flat(direction):
    return torch.cat([part.flatten() for part in direction.values()])


class TestClosedForm:
    @pytest.fixture
    def quadratic(self):
        model = Weights((3, 4))
        root = torch.randn(12, 12, generator=GENERATOR, dtype=torch.float64)
        hessian = root @ root.T
        slope = torch.randn(12, generator=GENERATOR, dtype=torch.float64)

        def loss(outputs, labels):
            return 0.5 * outputs @ hessian @ outputs + slope @ outputs

        return model, hessian, loss

    def test_lines(self, quadratic):
        model, _, loss = quadratic
        result = resprobe.surface(model, BATCHES, loss=loss, points=7, radius=1.5, draws=3, seed=4, **DOUBLE)
        assert result.loss.dims == ("draw", "direction_x")
        theta = model.weight.detach().flatten()
        for draw in range(3):
            d = flat(drawn(model, seed=4, draw=draw))
            for x in (-1.5, -1, -0.5, 0, 0.5, 1, 1.5):
                expected = float(loss(theta + x * d, None))
                np.testing.assert_allclose(result.loss.sel(draw=draw, direction_x=x), expected, rtol=1e-10)
        # whose outputs are no logits has no error
        assert np.isnan(result.error).all()
        assert (result.num_correct == -1).all()
        assert np.isnan(result.baseline_error)
        assert float(result.baseline_loss) == pytest.approx(float(loss(theta, None)), rel=1e-12)

    def test_plane(self, quadratic):
        model, _, loss = quadratic
        result = resprobe.surface(model, BATCHES, loss=loss, dims=2, points=5, seed=1, **DOUBLE)
        assert result.loss.dims == ("direction_x", "direction_y")
        theta = model.weight.detach().flatten()
        one, two = (flat(drawn(model, seed=1, axis=axis)) for axis in (0, 1))
        for x in result.direction_x.values:
            for y in result.direction_y.values:
                expected = float(loss(theta + x * one + y * two, None))
                np.testing.assert_allclose(result.loss.sel(direction_x=x, direction_y=y), expected, rtol=1e-10)

    def test_least_squares(self):
        x = torch.randn(8, 4, generator=GENERATOR, dtype=torch.float64)
        model = nn.Linear(4, 1, dtype=torch.float64)
        batches = [(x[:5], LABELS[:5]), (x[5:], LABELS[5:])]
        result = resprobe.surface(model, batches, loss=squares, points=9, draws=1, **DOUBLE)
        w, b = model.weight.detach()[0], model.bias.detach()
        d = drawn(model)["weight"][0]
        # the bias stays; batches of different size count by their images
        r, change = x @ w + b - LABELS, x @ d
        expected = [
            float(0.5 * ((r**2).mean() + 2 * t * (r * change).mean() + t**2 * (change**2).mean()))
            for t in np.linspace(-1, 1, 9)
        ]
        assert result.loss.dims == ("direction_x",)
        np.testing.assert_allclose(result.loss, expected, rtol=1e-10)

    @pytest.mark.parametrize("dims", [1, 2])
    def test_eigenvectors(self, quadratic, dims):
        model, hessian, loss = quadratic
        result = resprobe.surface(
            model, BATCHES, loss=loss, dims=dims, points=5, radius=0.5, directions="hessian", **DOUBLE
        )
        values, vectors = np.linalg.eigh(hessian.numpy())
        np.testing.assert_allclose(result.eigenvalue, values[:-3:-1], rtol=1e-8)
        theta = model.weight.detach().flatten()
        gradient = torch.autograd.functional.jacobian(lambda w: loss(w, None), theta).numpy()
        start = float(loss(theta, None))
        if dims == 1:
            assert result.loss.dims == ("rank", "direction_x")
            for rank in (1, 2):
                line = result.loss.sel(rank=rank)
                x = line.direction_x.values
                slope = abs(gradient @ vectors[:, -rank])
                even = (line.values + line.values[::-1]) / 2
                odd = (line.values - line.values[::-1]) / 2
                np.testing.assert_allclose(even, start + values[-rank] * x**2 / 2, rtol=1e-8)
                np.testing.assert_allclose(abs(odd), slope * abs(x), rtol=1e-8, atol=1e-10)
        else:
            x, y = np.meshgrid(result.direction_x, result.direction_y, indexing="ij")
            loss_here = result.loss.values
            even = (loss_here + loss_here[::-1, ::-1]) / 2
            np.testing.assert_allclose(even, start + (values[-1] * x**2 + values[-2] * y**2) / 2, rtol=1e-8)


def by_hand(net, mode, direction, x):
    """Loss and error at a point, with an ordinary copy of the network whose weights are set one by one."""
    moved = copy.deepcopy(net).train(mode == "batch")
    with torch.no_grad():
        for name, parameter in moved.named_parameters():
            parameter += x * direction[name]
        logits = [moved(images) for images, _ in BATCHES]
    losses = [F.cross_entropy(one, labels, reduction="sum") for one, (_, labels) in zip(logits, BATCHES, strict=True)]
    wrong = torch.cat(logits).argmax(1) != LABELS
    return float(sum(losses)) / 8, float(wrong.double().mean())


class TestNetworks:
    @pytest.mark.parametrize("mode", ["running", "batch", "folded", "none"])
    def test_by_hand(self, make_net, mode):
        net = make_net("resnet8", **({"norm": "none"} if mode == "none" else {})).double()
        result = resprobe.surface(net, BATCHES, points=5, draws=2, bn_mode=mode, **DOUBLE)
        assert result.attrs["bn_mode"] == mode
        subject = resprobe.fold_norm(net) if mode == "folded" else net
        for draw in (0, 1):
            direction = drawn(subject, draw=draw)
            for x in (-1, -0.5, 0, 0.5, 1):
                loss, error = by_hand(subject, mode, direction, x)
                at = result.sel(draw=draw, direction_x=x)
                assert float(at.loss) == pytest.approx(loss, rel=1e-9)
                assert float(at.error) == pytest.approx(error, abs=1e-12)
                assert int(at.num_correct) == round(8 * (1 - error))

    def test_loss_that_is_given_is_the_default(self, make_net):
        net = make_net("resnet8").double()
        one = resprobe.surface(net, BATCHES, points=3, **DOUBLE)
        other = resprobe.surface(net, BATCHES, points=3, loss=F.cross_entropy, **DOUBLE)
        np.testing.assert_allclose(one.loss, other.loss, rtol=1e-12)
        np.testing.assert_array_equal(one.num_correct, other.num_correct)
        assert json.loads(other.attrs["settings"])["loss"] == "cross_entropy"

    def test_default_mode_and_middle(self, make_net, digits):
        for norm, mode in (("batch", "running"), ("none", "none")):
            net = make_net("plain8", norm=norm)
            result = resprobe.surface(net, digits, points=3, draws=2)
            assert result.attrs["bn_mode"] == mode
            # the trained weights, bit for bit
            assert (result.loss.sel(direction_x=0) == result.baseline_loss).all()
        baseline = resprobe.lesion(make_net("resnet8"), digits)
        result = resprobe.surface(make_net("resnet8"), digits, points=2, draws=1)
        assert int(result.baseline_num_correct) == int(baseline.baseline_num_correct)
        assert float(result.baseline_loss) == pytest.approx(float(baseline.baseline_loss), rel=1e-5)

    def test_frozen_weights_move_too(self, make_net, digits):
        net = make_net("resnet8")
        before = resprobe.surface(net, digits, points=3, draws=1)
        frozen = resprobe.surface(net.requires_grad_(False), digits, points=3, draws=1)
        np.testing.assert_array_equal(frozen.loss, before.loss)

    def test_eigenvector_of_a_network(self, make_net):
        net = make_net("resnet8").double()
        # so near that no ReLU turns
        result = resprobe.surface(net, BATCHES, points=3, radius=1e-5, directions="hessian", **DOUBLE)
        low, middle, high = result.loss.transpose("direction_x", "rank").values
        np.testing.assert_allclose((high - 2 * middle + low) / 1e-10, result.eigenvalue, rtol=1e-3)
        assert result.eigenvalue[0] >= result.eigenvalue[1]

    @pytest.mark.parametrize("outer", [torch.no_grad, torch.inference_mode])
    @pytest.mark.parametrize("directions", ["random", "hessian"])
    def test_inside_other_modes(self, digits, outer, directions):
        net, options = small_net(), {"points": 2, "directions": directions}
        batches = list(digits)[:1]
        with outer():
            inside = resprobe.surface(net, batches, **options)
        np.testing.assert_array_equal(inside.loss, resprobe.surface(net, batches, **options).loss)

    def test_eigenvectors_leave_the_model_alone(self, digits):
        net = small_net().train()
        net(torch.randn(4, 1, 8, 8)).sum().backward()
        before = copy.deepcopy(net)
        gradients = [parameter.grad.clone() for parameter in net.parameters()]
        resprobe.surface(net, digits, points=2, directions="hessian", bn_mode="batch")
        for one, other in zip(before.state_dict().values(), net.state_dict().values(), strict=True):
            assert torch.equal(one, other)
        for gradient, other in zip(gradients, net.parameters(), strict=True):
            assert torch.equal(gradient, other.grad)
            assert other.requires_grad
        assert all(module.training for module in net.modules())

    def test_model_that_works_in_place(self):
        net = nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 10)).double()
        with torch.no_grad():
            net[2].weight *= 5
        batches = [(IMAGES.clone(), LABELS)]
        result = resprobe.surface(net, batches, points=3, draws=1, **DOUBLE)
        assert torch.equal(batches[0][0], IMAGES)
        assert result.loss[1] == result.baseline_loss


class TestDirections:
    def test_first_draws_do_not_depend_on_their_number(self, make_net, digits):
        net = make_net("resnet8")
        few, many = (resprobe.surface(net, digits, points=2, draws=draws) for draws in (2, 3))
        np.testing.assert_array_equal(few.loss, many.loss[:2])
        assert len(np.unique(many.loss)) == 6

    def test_seed(self, make_net, digits):
        net = make_net("resnet8")
        one, same, other = (resprobe.surface(net, digits, points=2, draws=1, seed=seed) for seed in (3, 3, 4))
        np.testing.assert_array_equal(one.loss, same.loss)
        assert (one.loss != other.loss).all()
        assert one.attrs["seed"] == 3

    def test_zero_filters_and_biases_stay(self):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()
        with torch.no_grad():
            model[1].weight.zero_()
        result = resprobe.surface(model, BATCHES, points=3, draws=2, **DOUBLE)
        assert (result.loss == result.baseline_loss).all()

    def test_planes(self, make_net, digits):
        result = resprobe.surface(make_net("resnet8"), digits, dims=2, points=3, draws=2)
        assert result.loss.dims == ("draw", "direction_x", "direction_y")
        resprobe.results.check(result)
        alone = resprobe.surface(make_net("resnet8"), digits, dims=2, points=3)
        np.testing.assert_array_equal(alone.loss, result.loss.sel(draw=0))


class TestNonFinite:
    def test_kept_and_counted(self, tmp_path):
        model = Weights((1, 1))
        with torch.no_grad():
            model.weight.fill_(1.0)

        def loss(outputs, labels):
            # the direction is 1 or -1: on one side at distance 1 the logarithm ends, beyond there is none
            return outputs.sum() - torch.log(outputs).sum()

        result = resprobe.surface(model, BATCHES, loss=loss, points=7, radius=1.5, draws=1, **DOUBLE)
        losses = sorted(result.loss.values, key=lambda value: (math.isnan(value), value))
        assert losses[-2] == math.inf
        assert math.isnan(losses[-1])
        assert np.isfinite(losses[:-2]).all()
        assert int(result.num_nonfinite) == 2
        assert result.done.all()
        path = resprobe.results.save(result, tmp_path / "s.nc")
        assert resprobe.results.open(path).identical(result)

    def test_overflow_of_a_network(self, make_net, digits):
        result = resprobe.surface(make_net("resnet8"), digits, points=3, radius=1e30, draws=2)
        ends = result.isel(direction_x=[0, 2])
        assert not np.isfinite(ends.loss).any()
        assert int(result.num_nonfinite) == 4
        # an image whose loss is not finite is wrong
        assert (ends.error == 1).all()
        assert np.isfinite(result.loss.isel(direction_x=1)).all()


class TestResuming:
    OPTIONS = {"dims": 2, "points": 3, "seed": 2}

    def interrupted(self, net, data, after, **options):
        """What is kept when progress interrupts after some images."""
        kept = []

        def progress(done, total):
            if done >= after:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            resprobe.surface(net, data, **options, progress=progress, keep=kept.append)
        return kept

    @pytest.mark.parametrize("options", [{"dims": 2, "points": 3}, {"points": 4, "draws": 2}])
    def test_equal_to_an_uninterrupted_run(self, make_net, digits, options, tmp_path):
        net = make_net("resnet8")
        (part,) = self.interrupted(net, digits, 60 * 4 + 30, **options)
        # the fifth point was not complete
        assert int(part.done.sum()) == 4
        assert np.isnan(part.loss.values[part.done.values == 0]).all()
        assert (part.num_correct.values[part.done.values == 0] == -1).all()
        assert resprobe.results.is_unfinished(part)
        # as it comes back from its file
        part = resprobe.results.open(resprobe.results.save(part, tmp_path / "s.nc"))
        seen = []
        whole = resprobe.surface(
            net, digits, **options, resume=part, progress=lambda *at: seen.append(at), keep=pytest.fail
        )
        expected = resprobe.surface(net, digits, **options)
        assert whole.equals(expected)
        assert {name: whole.attrs[name] for name in whole.attrs if name != "created_at"} == {
            name: expected.attrs[name] for name in expected.attrs if name != "created_at"
        }
        assert not resprobe.results.is_unfinished(whole)
        left = whole.done.size - 4
        assert seen[-1] == (60 * left, 60 * left)

    def test_along_eigenvectors(self, digits):
        net, options = small_net(), {"points": 3, "directions": "hessian"}
        expected = resprobe.surface(net, list(digits)[:1], **options)
        kept = []

        def progress(done, total):
            # none is known while the eigenvectors are sought
            if total is not None and done > total - 3 * 25:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            resprobe.surface(net, list(digits)[:1], **options, progress=progress, keep=kept.append)
        assert 0 < int(kept[-1].done.sum()) < 6
        assert resprobe.surface(net, list(digits)[:1], **options, resume=kept[-1]).equals(expected)

    def test_kept_every_few_seconds(self, make_net, digits, monkeypatch):
        monkeypatch.setattr(surfaces, "SECONDS_BETWEEN_KEEPS", 0.0)
        parts = []
        resprobe.surface(make_net("resnet8"), digits, points=3, draws=1, keep=parts.append)
        assert [int(part.done.sum()) for part in parts] == [1, 2, 3]

    def test_kept_when_it_fails(self, make_net, digits):
        kept = []
        self_destruct = iter([False] * 12 + [True])

        def loss(outputs, labels):
            if next(self_destruct):
                raise RuntimeError("broken")
            return F.cross_entropy(outputs, labels)

        with pytest.raises(RuntimeError, match="broken"):
            resprobe.surface(make_net("resnet8"), digits, points=5, draws=1, loss=loss, keep=kept.append)
        # three batches at the trained weights, three at each point
        assert [int(part.done.sum()) for part in kept] == [3]

    def test_nothing_done_is_not_kept(self, make_net, digits):
        assert self.interrupted(make_net("resnet8"), digits, 25, **self.OPTIONS) == []

    @pytest.mark.parametrize(
        "change", [{"seed": 3}, {"points": 5}, {"radius": 2.0}, {"precision": "float64"}, {"bn_mode": "batch"}]
    )
    def test_another_question(self, make_net, digits, change):
        net = make_net("resnet8")
        (part,) = self.interrupted(net, digits, 60 * 2, **self.OPTIONS)
        with pytest.raises(ResprobeError, match="resume: expected a result of the same model, .* another fingerprint"):
            resprobe.surface(net, digits, **{**self.OPTIONS, **change}, resume=part)

    def test_another_model(self, make_net, digits):
        net = make_net("resnet8")
        (part,) = self.interrupted(net, digits, 60 * 2, **self.OPTIONS)
        with torch.no_grad():
            net.layer1[0].bn1.running_mean[0] += 1e-3
        with pytest.raises(ResprobeError, match="got another weights_sha256"):
            resprobe.surface(net, digits, **self.OPTIONS, resume=part)

    def test_other_data(self, make_net, digits):
        net, batches = make_net("resnet8"), list(digits)
        kept = self.interrupted(net, batches, 60 * 2, **self.OPTIONS)
        batches[0] = batches[0][0] + 1, batches[0][1]
        with pytest.raises(ResprobeError, match="another fingerprint"):
            resprobe.surface(net, batches, **self.OPTIONS, resume=kept[0])

    def test_of_another_analysis(self, make_net, digits):
        net = make_net("resnet8")
        with pytest.raises(ResprobeError, match="another fingerprint"):
            resprobe.surface(net, digits, **self.OPTIONS, resume=resprobe.lesion(net, digits))


class TestCost:
    def test_images_that_are_not_held(self, make_net, digits, monkeypatch):
        net = make_net("resnet8")
        held = resprobe.surface(net, digits, dims=2, points=3)
        monkeypatch.setattr(surfaces, "LARGEST_HELD_BYTES", 0)
        passes = []

        class Counted:
            num_images, provenance = digits.num_images, digits.provenance

            def __iter__(self):
                passes.append(1)
                return iter(digits)

        read = resprobe.surface(net, Counted(), dims=2, points=3)
        assert read.equals(held)
        # marks, trained weights, three rows
        assert len(passes) == 5
        kept = []

        def progress(done, total):
            if done > 60 * 3 * 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            resprobe.surface(net, Counted(), dims=2, points=3, progress=progress, keep=kept.append)
        assert kept[0].done.values.tolist() == [[True] * 3, [True] * 3, [False] * 3]
        assert resprobe.surface(net, digits, dims=2, points=3, resume=kept[0]).equals(held)

    def test_batches_that_come_once(self, make_net, digits):
        net = make_net("resnet8")
        once = resprobe.surface(net, iter(list(digits)), points=2, draws=2)
        np.testing.assert_array_equal(once.loss, resprobe.surface(net, digits, points=2, draws=2).loss)

    def test_one_pass_for_each_point(self, make_net, digits):
        net = make_net("resnet8")
        calls = []
        net.register_forward_hook(lambda module, args, output: calls.append(len(args[0])))
        resprobe.surface(net, digits, points=3, draws=2)
        # the example passes twice, to see whether the network draws random numbers
        assert calls == [2, 2] + [25, 25, 10] * 7

    def test_progress(self, make_net, digits):
        seen = []
        resprobe.surface(make_net("resnet8"), digits, points=2, draws=1, progress=lambda *at: seen.append(at))
        assert seen == [(25, 120), (50, 120), (60, 120), (85, 120), (110, 120), (120, 120)]

    def test_memory_does_not_grow(self):
        net = small_net()
        batches = [(IMAGES[:2].repeat(200, 1, 1, 1), LABELS[:2].repeat(200))]
        options = {"points": 2, "draws": 1, **DOUBLE}

        def tensors():
            gc.collect()
            return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in kB

        for _ in range(5):
            resprobe.surface(net, batches, **options)
        before = tensors(), peak()
        for _ in range(25):
            resprobe.surface(net, batches, **options)
        assert tensors() == before[0]
        # the images of all calls are 5,000 kB
        assert peak() - before[1] < 4_000


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"dims": 3}, "dims: expected 1 or 2, got 3"),
            ({"points": 1}, "points: expected 2 or more, got 1"),
            ({"dims": 1.0}, "dims: expected 1 or 2, got 1.0"),
            ({"dims": [1]}, r"dims: expected 1 or 2, got \[1\]"),
            ({"radius": "1"}, "radius: expected a number above 0, got 1"),
            ({"draws": True}, "draws: expected 1 or more, got True"),
            ({"seed": 2**63}, r"seed: expected at most 9223372036854775807 \(2\*\*63 - 1\), got 9223372036854775808"),
            ({"points": 2.5}, "points: expected 2 or more, got 2.5"),
            ({"radius": 0}, "radius: expected a number above 0, got 0"),
            ({"radius": math.inf}, "radius: expected a number above 0, got inf"),
            ({"directions": "up"}, "directions: expected random, hessian, got 'up'"),
            ({"draws": 0}, "draws: expected 1 or more, got 0"),
            ({"draws": 2, "directions": "hessian"}, "draws: expected none along eigenvectors, got 2"),
            ({"seed": -1}, "seed: expected a whole number from 0, got -1"),
            ({"bn_mode": "none"}, "bn_mode: expected one of running, batch, folded for ResidualNetwork, got 'none'"),
            ({"precision": "bfloat16"}, "precision: expected float32 or float64 for this analysis, got bfloat16"),
            ({"loss": lambda outputs, labels: outputs}, "loss: expected one number"),
            ({"loss": lambda outputs, labels: 3.0}, "loss: expected one number, got float"),
        ],
    )
    def test_options(self, make_net, digits, options, message):
        with pytest.raises(ResprobeError, match=message) as error:
            resprobe.surface(make_net("resnet8"), digits, **options)
        assert "\n" not in str(error.value)

    def test_models(self, make_net, digits):
        with pytest.raises(ResprobeError, match="model: expected a torch.nn.Module, got str"):
            resprobe.surface("net", digits)
        with pytest.raises(ResprobeError, match="expected weights of two or more dimensions, got none"):
            resprobe.surface(nn.Flatten(), digits)
        with pytest.raises(ResprobeError, match="expected 2 trainable parameters or more .* got 0"):
            resprobe.surface(make_net("resnet8").requires_grad_(False), digits, directions="hessian")
        with pytest.raises(ResprobeError, match=r"outputs: expected logits \(2, classes\), got shape \(2, 2, 8, 8\)"):
            resprobe.surface(nn.Conv2d(1, 2, 1), digits)
        with pytest.raises(ResprobeError, match="LSTM: expected a tensor as output, got tuple"):
            resprobe.surface(nn.LSTM(8, 4), [(IMAGES[:, 0].float(), LABELS)])

    def test_a_model_that_draws(self):
        class Dropping(nn.Linear):
            def forward(self, x):
                return F.dropout(super().forward(x.flatten(1)), 0.5, True)

        net = Dropping(64, 10).double()
        before = torch.get_rng_state()
        with pytest.raises(ResprobeError, match="Dropping: expected the same outputs each time"):
            resprobe.surface(net, BATCHES, **DOUBLE)
        assert torch.equal(torch.get_rng_state(), before)

    def test_a_batch_of_one(self, make_net):
        batches = [(IMAGES[:2].float(), LABELS[:2]), (IMAGES[2:3].float(), LABELS[2:3])]
        with pytest.raises(ResprobeError, match=r"expected 2 images or more for batch statistics, got one \(image 2\)"):
            resprobe.surface(make_net("resnet8"), batches, bn_mode="batch")
        # where even PyTorch refuses a single image
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 10))
        with pytest.raises(ResprobeError, match=r"got one \(image 0\)"):
            resprobe.surface(net, [(IMAGES[:1].float(), LABELS[:1])], bn_mode="batch")

    def test_a_label_that_is_no_class(self):
        labels = LABELS[5:].clone()
        labels[1] = 10
        with pytest.raises(ResprobeError, match="labels: expected 0 to 9, the model's classes, got 10 at image 6"):
            resprobe.surface(small_net().double(), [BATCHES[0], (IMAGES[5:], labels)], points=2, **DOUBLE)


def test_a_default_in_words_is_the_same_question():
    net, batches = small_net(), [(IMAGES.float(), LABELS)]
    left_out = resprobe.surface(net, batches, points=2)
    in_words = resprobe.surface(net, batches, dims=np.int64(1), points=2, radius=1, draws=5, bn_mode="running")
    assert left_out.attrs["settings"] == in_words.attrs["settings"]
    assert json.loads(left_out.attrs["settings"])["draws"] == 5


def test_an_empty_batch_counts_for_nothing():
    net, options = small_net(), {"points": 2, "draws": 1, "loss": lambda *pair: F.cross_entropy(*pair), **DOUBLE}
    holes = [BATCHES[0], (IMAGES[:0], LABELS[:0]), BATCHES[1]]
    np.testing.assert_array_equal(
        resprobe.surface(net, holes, **options).loss, resprobe.surface(net, BATCHES, **options).loss
    )


def test_far_away():
    # twice the radius is more than a number can be
    result = resprobe.surface(small_net(), BATCHES, points=3, radius=1e308, draws=1, **DOUBLE)
    np.testing.assert_array_equal(result.direction_x, [-1e308, 0, 1e308])


def test_settings(make_net, digits):
    result = resprobe.surface(make_net("resnet8"), digits, points=3)
    settings = json.loads(result.attrs["settings"])
    assert settings["radius"] == 1.0
    assert settings["batch_size"] == 25
    assert result.sizes == {"draw": 5, "direction_x": 3}
    assert result.attrs["num_images"] == 60
    assert result.attrs["directions"] == "random"
    resprobe.results.check(result)
