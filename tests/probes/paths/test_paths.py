import itertools
import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

import resprobe
from resprobe.errors import ResprobeError, ResprobeWarning
from resprobe.probes.paths import measuring as path_measuring
from resprobe.probes.paths.samples import draw_paths
from resprobe.units import count_paths, find, graph

NUM_IMAGES = 3
IMAGES = torch.randn(NUM_IMAGES, 1, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
LABELS = torch.tensor([0, 3, 7])
BATCHES = [(IMAGES, LABELS)]


def randomised_double(model):
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3, generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
            module.weight.data.uniform_(0.5, 1.5, generator=generator)
    return model.double().eval()


class TorchvisionNet(nn.Module):
    """Three bottlenecks of torchvision, the first with a projection, grouped convolutions in the second."""

    def __init__(self):
        super().__init__()
        bottleneck = torchvision.models.resnet.Bottleneck
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        projection = nn.Sequential(nn.Conv2d(4, 8, 1, stride=2), nn.BatchNorm2d(8))
        self.blocks = nn.Sequential(
            bottleneck(4, 2, stride=2, downsample=projection),
            bottleneck(8, 2, groups=2, base_width=64),
            bottleneck(8, 2),
        )
        self.linear = nn.Linear(8, 10)

    def forward(self, x):
        return self.linear(self.blocks(self.stem(x)).mean((2, 3)))


def ours(net):
    """Write out the pieces of our own networks by hand: stem, (branch, shortcut, after) of each block, head."""
    pre = net.architecture.preactivation

    def branch(block):
        if pre:
            return lambda x: block.conv2(F.relu(block.bn2(block.conv1(F.relu(block.bn1(x))))))
        return lambda x: block.bn2(block.conv2(F.relu(block.bn1(block.conv1(x)))))

    blocks = [block for layer in (net.layer1, net.layer2, net.layer3) for block in layer]
    last = (lambda x: F.relu(net.bn(x))) if pre else (lambda x: x)
    return (
        (lambda x: net.conv1(x)) if pre else (lambda x: F.relu(net.bn1(net.conv1(x)))),
        [(branch(block), block.shortcut, (lambda x: x) if pre else F.relu) for block in blocks],
        lambda x: net.linear(last(x).mean((2, 3))),
    )


def bottlenecks(net):
    def branch(block):
        return lambda x: block.bn3(block.conv3(F.relu(block.bn2(block.conv2(F.relu(block.bn1(block.conv1(x))))))))

    blocks = [(branch(block), block.downsample or (lambda x: x), F.relu) for block in net.blocks]
    return net.stem, blocks, lambda x: net.linear(x.mean((2, 3)))


def jacobian(function, x):
    """Give the Jacobian of a function of one image's activations as a matrix."""
    found = torch.autograd.functional.jacobian(lambda one: function(one[None])[0].flatten(), x[0], vectorize=True)
    return found.reshape(found.shape[0], -1)


def all_paths(pieces, image, label, *, at="input"):
    """Give the gradient along each path, by multiplying out explicit Jacobian matrices: {branches taken: gradient}."""
    stem, blocks, head = pieces
    matrices = []
    x = stem(image[None]).detach()
    first = jacobian(stem, image[None])
    for branch, skip, after in blocks:
        total = (branch(x) + skip(x)).detach()
        outer = jacobian(after, total)
        matrices.append((outer @ jacobian(skip, x), outer @ jacobian(branch, x)))
        x = after(total).detach()
    loss = jacobian(lambda y: F.cross_entropy(head(y), label[None], reduction="none"), x)
    gradients = {(): loss}
    for pair in reversed(matrices):
        gradients = {
            (taken, *choice): gradient @ matrix
            for choice, gradient in gradients.items()
            for taken, matrix in enumerate(pair)
        }
    return {choice: (gradient @ first if at == "input" else gradient)[0] for choice, gradient in gradients.items()}


CASES = {
    "resnet20": lambda make: (make("resnet20", width=2).double(), ours),
    "resnet20 with projections": lambda make: (make("resnet20", width=2, shortcut="projection").double(), ours),
    "preresnet20": lambda make: (make("preresnet20", width=2).double(), ours),
    "resnet8 without normalisation": lambda make: (make("resnet8", norm="none").double(), ours),
    "bottlenecks": lambda make: (randomised_double(TorchvisionNet()), bottlenecks),
}


@pytest.fixture(scope="module")
def brute_force(make_net):
    known = {}

    def compute(case, at="input"):
        if (case, at) not in known:
            net, pieces = CASES[case](make_net)
            written = pieces(net)
            known[case, at] = (
                net,
                [all_paths(written, image, label, at=at) for image, label in zip(IMAGES, LABELS, strict=True)],
            )
        return known[case, at]

    return compute


def of_length(gradients, length):
    return [gradient for choice, gradient in gradients.items() if sum(choice) == length]


class TestExact:
    @pytest.mark.parametrize("case", list(CASES))
    def test_all_paths(self, brute_force, case):
        net, gradients = brute_force(case)
        result = resprobe.paths(net, BATCHES, precision="float64")
        expected = [
            np.mean([float(sum(of_length(one, length)).norm()) for one in gradients])
            for length in result.path_length.values
        ]
        np.testing.assert_allclose(result.coherent_grad_norm, expected, rtol=1e-10)
        assert result.num_paths.values.tolist() == [len(of_length(gradients[0], k)) for k in result.path_length.values]
        assert float(result.completeness_error) < 1e-10

    def test_first_unit(self, brute_force):
        net, gradients = brute_force("resnet20", "first-unit")
        result = resprobe.paths(net, BATCHES, precision="float64", at="first-unit")
        expected = np.mean([float(sum(of_length(one, 4)).norm()) for one in gradients])
        assert float(result.coherent_grad_norm.sel(path_length=4)) == pytest.approx(expected, rel=1e-10)

    def test_stages(self, brute_force):
        net, gradients = brute_force("resnet20")
        result = resprobe.paths(net, BATCHES, precision="float64", by_stage=True)
        for stage in (1, 2, 3):
            units = slice(3 * stage - 3, 3 * stage)
            for length in range(4):
                expected = [
                    float(sum(g for choice, g in one.items() if sum(choice[units]) == length).norm())
                    for one in gradients
                ]
                got = result.stage_grad_norm.sel(stage=stage, stage_length=length)
                assert float(got) == pytest.approx(np.mean(expected), rel=1e-10)
        assert result.stage_num_paths.values.tolist() == [[1, 3, 3, 1]] * 3

    def test_ordinary_gradient(self, make_net):
        net = make_net("resnet20").double()
        result = resprobe.paths(net, BATCHES, precision="float64")
        images = IMAGES.clone().requires_grad_()
        # the sum over images: each image's gradient is that of its own loss
        loss = F.cross_entropy(net(images), LABELS, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, images)
        norms = gradient.flatten(1).norm(dim=1).numpy()
        assert float(result.full_grad_norm) == pytest.approx(norms.mean(), rel=1e-12)
        assert float(result.full_grad_norm_sem) == pytest.approx(norms.std(ddof=1) / math.sqrt(NUM_IMAGES), rel=1e-10)
        assert float(result.baseline_loss) == pytest.approx(float(loss.detach()) / NUM_IMAGES, rel=1e-12)

    def test_scalar_net(self, scalar_net):
        # (1 + 2)(1 + 3): paths of length 0, 1, 2 have the weights 1, 2 + 3, 6
        x = torch.tensor([[0.1]])
        result = resprobe.paths(scalar_net, [(x, torch.tensor([1]))], estimator="all", repeats=50, samples=50)
        slope = 1 / (1 + math.exp(-1.2))  # of the loss at the logits (1.2, 0), label 1
        np.testing.assert_allclose(result.coherent_grad_norm, slope * np.array([1, 5, 6]), rtol=1e-6)
        # by signs the cross term of 2 and 3 is 12 s_1 s_2: 13 in the mean, 1 or 25 in each draw
        assert float(result.path_grad_rms[0]) == pytest.approx(slope, rel=1e-6)
        mean = 2 * (float(result.path_grad_rms[1]) / slope) ** 2
        assert mean == pytest.approx(13, abs=4 * 12 / math.sqrt(50))
        assert float(result.path_grad_mean[1]) == pytest.approx(2.5 * slope, abs=0.3 * slope)
        # the squares per path are 0.5 or 12.5, so that their mean says how often each came
        often = (mean / 2 - 0.5) / 12
        spread = 12 * math.sqrt(often * (1 - often) / 49)
        expected = slope**2 * spread / (2 * float(result.path_grad_rms[1]))
        assert float(result.path_grad_rms_sem[1]) == pytest.approx(expected, rel=1e-4)


@pytest.fixture(scope="module")
def estimated(brute_force):
    net, gradients = brute_force("resnet20")
    result = resprobe.paths(net, BATCHES, precision="float64", estimator="all", repeats=40, samples=40, seed=3)
    return result, gradients


class TestEstimators:
    def test_signs(self, estimated):
        result, gradients = estimated
        z = []
        for length in result.path_length.values:
            squares = [float((g**2).sum()) for one in gradients for g in of_length(one, length)]
            row = result.sel(path_length=length)
            expected = math.sqrt(np.mean(squares))
            if length in (0, 9):
                # a single path has no cross terms
                assert float(row.path_grad_rms) == pytest.approx(expected, rel=1e-10)
            else:
                z.append((float(row.path_grad_rms) - expected) / float(row.path_grad_rms_sem))
        assert max(np.abs(z)) < 4
        assert np.sqrt(np.mean(np.square(z))) > 0.1  # the standard errors are no exaggeration

    def test_sampled(self, estimated):
        result, gradients = estimated
        z = []
        for length in result.path_length.values:
            row = result.sel(path_length=length)
            expected = np.mean([float(g.norm()) for one in gradients for g in of_length(one, length)])
            if length in (0, 9):
                assert float(row.path_grad_mean) == pytest.approx(expected, rel=1e-10)
            else:
                z.append((float(row.path_grad_mean) - expected) / float(row.path_grad_mean_sem))
        assert max(np.abs(z)) < 4
        assert np.sqrt(np.mean(np.square(z))) > 0.1

    def test_each_sampled_path(self, brute_force):
        net, gradients = brute_force("resnet20")
        result = resprobe.paths(net, BATCHES, precision="float64", estimator="sampled", samples=3, seed=5)
        drawn = draw_paths(range(10), range(9), 9, 3, 5)
        norms = [
            np.mean([float(one[tuple(int(i in path) for i in range(9))].norm()) for one in gradients]) for path in drawn
        ]
        np.testing.assert_allclose(result.path_grad_mean, np.reshape(norms, (10, 3)).mean(1), rtol=1e-10)

    def test_seed(self, make_net, digits):
        net = make_net("resnet8")
        first, again, other = (
            resprobe.paths(net, digits, estimator="all", repeats=2, samples=2, seed=seed) for seed in (1, 1, 2)
        )
        assert first.identical(again.assign_attrs(created_at=first.attrs["created_at"]))
        assert not np.allclose(first.path_grad_rms[1:-1], other.path_grad_rms[1:-1])
        assert "path_grad_mean" not in resprobe.paths(net, digits, estimator="signs", repeats=2)


class TestInvariance:
    def test_batch_size_and_order(self, make_net):
        net = make_net("resnet8").double()
        images = torch.randn(7, 1, 8, 8, dtype=torch.float64)
        labels = torch.arange(7)
        options = {"precision": "float64", "estimator": "all", "repeats": 2, "samples": 2, "by_stage": True}
        whole = resprobe.paths(net, [(images, labels)], **options)
        split = resprobe.paths(net, list(zip(images.split(3), labels.split(3), strict=True)), **options)
        for name in whole.data_vars:
            if name != "completeness_error":
                np.testing.assert_allclose(split[name], whole[name], rtol=1e-9, err_msg=name)
        turned = resprobe.paths(net, [(images.flip(0), labels.flip(0))], precision="float64")
        np.testing.assert_allclose(turned.coherent_grad_norm, whole.coherent_grad_norm, rtol=1e-12)
        np.testing.assert_allclose(turned.coherent_grad_norm_sem, whole.coherent_grad_norm_sem, rtol=1e-9)

    def test_memory_runs_out(self, make_net, digits, monkeypatch):
        net = make_net("resnet8")
        expected = resprobe.paths(net, digits, estimator="signs", repeats=2)
        whole = path_measuring.Tape

        def small(segments, images, labels, row):
            if len(images) > 10:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return whole(segments, images, labels, row)

        monkeypatch.setattr(path_measuring, "Tape", small)
        with pytest.warns(ResprobeWarning) as notices:
            result = resprobe.paths(net, digits, estimator="signs", repeats=2)
        np.testing.assert_allclose(result.coherent_grad_norm, expected.coherent_grad_norm, rtol=1e-4)
        np.testing.assert_allclose(result.path_grad_rms, expected.path_grad_rms, rtol=1e-4)
        assert str(notices[0].message) == "cpu has no room for 25 images at a time; going on with 12"

    def test_no_memory_at_all(self, make_net, digits, monkeypatch):
        def full(*args):
            raise torch.OutOfMemoryError

        monkeypatch.setattr(path_measuring, "Tape", full)
        with pytest.warns(ResprobeWarning), pytest.raises(ResprobeError, match="expected room for one image"):
            resprobe.paths(make_net("resnet8"), digits)

    @pytest.mark.parametrize("outer", [torch.no_grad, torch.inference_mode])
    def test_inside_other_modes(self, make_net, digits, outer):
        net = make_net("resnet8")
        with outer():
            inside = resprobe.paths(net, digits)
        np.testing.assert_allclose(inside.coherent_grad_norm, resprobe.paths(net, digits).coherent_grad_norm, rtol=1e-6)


class TestSmallNumbers:
    def test_no_underflow(self):
        class Unit(nn.Module):
            def __init__(self, weight):
                super().__init__()
                self.scale = nn.Linear(1, 1, bias=False)
                nn.init.constant_(self.scale.weight, weight)

            def forward(self, x):
                return x + self.scale(x)

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.units = nn.Sequential(*(Unit(1e-12) for _ in range(8)))

            def forward(self, x):
                y = self.units(x)
                return torch.cat([y, torch.zeros_like(y)], dim=1)

        # 1e-12 to the 8th power is far below the smallest float32
        result = resprobe.paths(Net(), [(torch.zeros(1, 1), torch.tensor([0]))], estimator="all", repeats=2, samples=2)
        expected = [0.5 * math.comb(8, length) * 1e-12**length for length in range(9)]
        np.testing.assert_allclose(result.coherent_grad_norm, expected, rtol=1e-5)
        single = [0.5 * 1e-12**length for length in range(9)]
        np.testing.assert_allclose(result.path_grad_mean, single, rtol=1e-5)
        assert (result.path_grad_rms > 0).all()

    def test_confident_image(self, make_net):
        class Sure(nn.Module):
            def __init__(self, net):
                super().__init__()
                self.net = net

            def forward(self, x):
                return 300 * self.net(x)

        net = make_net("resnet8")
        labels = net(IMAGES.float()).argmax(1)
        # in float32 softmax rounds to exactly 1, and its gradient to 0
        result = resprobe.paths(Sure(net), [(IMAGES.float(), labels)])
        exact = resprobe.paths(Sure(net).double(), [(IMAGES, labels)], precision="float64")
        assert 0 < float(exact.full_grad_norm) < 1e-4
        np.testing.assert_allclose(result.full_grad_norm, exact.full_grad_norm, rtol=0.05)

    def test_untrained_plain_net(self, make_net):
        result = resprobe.paths(make_net("plain56", norm="none"), [(IMAGES.float(), LABELS)])
        assert np.isfinite(result.full_grad_norm)


class TestPlain:
    def test_one_path(self, make_net, digits):
        result = resprobe.paths(make_net("plain20"), digits, estimator="all", repeats=2, samples=2)
        assert result.path_length.values.tolist() == [18]
        assert result.num_paths.values.tolist() == [1]
        assert result.length_in_layers.values.tolist() == [18]
        assert float(result.grad_share[0]) == 1
        for name in ("coherent_grad_norm", "path_grad_mean"):
            assert float(result[name][0]) == pytest.approx(float(result.full_grad_norm), rel=1e-4)
        assert "one path" in result.attrs["note"]


class TestCounts:
    def test_binomial(self, make_net):
        unravelled = graph(find(make_net("resnet110"), IMAGES.float()))
        counts = count_paths(unravelled)
        assert counts == {length: math.comb(54, length) for length in range(55)}
        assert count_paths(unravelled, "layers") == {2 * length: number for length, number in counts.items()}
        assert count_paths(unravelled, stage=2) == {length: math.comb(18, length) for length in range(19)}
        # Veit et al.: paths of 5 to 17 modules are 0.45 % of all
        assert sum(counts[k] for k in range(5, 18)) / 2**54 == pytest.approx(0.00454, abs=5e-5)

    def test_plain(self, make_net):
        assert count_paths(graph(find(make_net("plain20"), IMAGES.float()))) == {18: 1}

    def test_brute_force_of_unequal_branches(self):
        units = find(randomised_double(TorchvisionNet()), IMAGES).units
        layers = [unit.branch_layers for unit in units]
        expected = {}
        for choice in itertools.product((0, 1), repeat=len(units)):
            length = sum(taken * number for taken, number in zip(choice, layers, strict=True))
            expected[length] = expected.get(length, 0) + 1
        assert count_paths(graph(units), "layers") == expected

    def test_more_than_64_bits(self, make_net, tmp_path):
        net = make_net("resnet140", width=1)
        result = resprobe.paths(net, [(IMAGES[:1].float(), LABELS[:1])])
        assert int(result.num_paths[34].item()) == math.comb(69, 34)
        resprobe.results.save(result, tmp_path / "many.nc")
        again = resprobe.results.open(tmp_path / "many.nc")
        assert int(again.num_paths[34].item()) == math.comb(69, 34)

    def test_errors(self, make_net):
        unravelled = graph(find(make_net("resnet8"), IMAGES.float()))
        with pytest.raises(ResprobeError, match="length: expected branches or layers, got 'blocks'"):
            count_paths(unravelled, "blocks")
        with pytest.raises(ResprobeError, match="stage: expected one of 1, 2, 3, got 4"):
            count_paths(unravelled, stage=4)


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"estimator": "naive"}, "estimator: expected exact, signs, sampled, all, got 'naive'"),
            ({"at": "logits"}, "at: expected input, first-unit, got 'logits'"),
            ({"precision": "bfloat16"}, "precision of a gradient: expected float32, float64, got 'bfloat16'"),
            ({"repeats": 1}, "repeats: expected 2 or more"),
            ({"samples": 0}, "samples: expected 2 or more"),
            ({"samples": 2.5}, "samples: expected 2 or more"),
            ({"seed": -1}, "seed: expected a whole number from 0, got -1"),
        ],
    )
    def test_options(self, make_net, digits, options, message):
        with pytest.raises(ResprobeError, match=message):
            resprobe.paths(make_net("resnet8"), digits, **options)

    def test_labels(self, make_net):
        with pytest.raises(ResprobeError, match="labels: expected 0 to 9, the model's classes, got 10 at image 1"):
            resprobe.paths(make_net("resnet8"), [(IMAGES.float(), torch.tensor([1, 10, 2]))])

    def test_not_finite(self, make_net):
        images = IMAGES.float().clone()
        images[2, 0, 0, 0] = math.nan
        with pytest.raises(ResprobeError, match="gradient of the loss: expected finite numbers, got nan at image 5"):
            resprobe.paths(make_net("resnet8"), [(IMAGES.float(), LABELS), (images, LABELS)])

    def test_no_chain(self):
        with pytest.raises(ResprobeError):
            resprobe.paths(torchvision.models.densenet121(), [(torch.randn(2, 3, 32, 32), torch.tensor([0, 1]))])

    def test_failing_self_test(self, make_net, digits, monkeypatch):
        whole = path_measuring.Tape.branch
        monkeypatch.setattr(path_measuring.Tape, "branch", lambda *args: 1.01 * whole(*args))
        with pytest.raises(ResprobeError, match="self-test: expected the sum over all path lengths"):
            resprobe.paths(make_net("resnet8"), digits)


def test_settings(make_net, digits):
    result = resprobe.paths(make_net("resnet8"), digits, by_stage=True)
    settings = json.loads(result.attrs["settings"])
    assert settings["estimator"] == "exact"
    assert settings["by_stage"] is True
    assert result.attrs["bn_mode"] == "running"
    resprobe.results.check(result)


def test_effective_length(make_net, digits):
    result = resprobe.paths(make_net("resnet20"), digits)
    mass = result.coherent_grad_norm.values
    mean = (result.path_length.values * mass).sum() / mass.sum()
    assert float(result.effective_length_mean) == pytest.approx(mean)
    low, high = int(result.effective_length_low), int(result.effective_length_high)
    assert mass[: low + 1].sum() >= 0.05 * mass.sum() > mass[:low].sum()
    assert mass[: high + 1].sum() >= 0.95 * mass.sum() > mass[:high].sum()
    expected = sum(math.comb(9, k) for k in range(low, high + 1)) / 512
    assert float(result.effective_path_share) == pytest.approx(expected)
