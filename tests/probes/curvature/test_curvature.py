import gc
import math
import resource

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

import resprobe
from resprobe import results
from resprobe.engine.repeated_batches import RepeatedBatches
from resprobe.errors import ResprobeError
from resprobe.normalisation.bn_modes import in_mode
from resprobe.probes.curvature import spectra
from resprobe.probes.curvature.parameter_blocks import parameter_blocks
from resprobe.probes.landscape import eigenpairs, hessians

CPU = torch.device("cpu")
DOUBLE = {"precision": "float64"}
GENERATOR = torch.Generator().manual_seed(5)
IMAGES = torch.randn(12, 1, 8, 8, generator=GENERATOR, dtype=torch.float64)
LABELS = torch.tensor([0, 3, 7, 1, 9, 2, 2, 5, 4, 8, 6, 0])
UNEQUAL = [(IMAGES[:7], LABELS[:7]), (IMAGES[7:], LABELS[7:])]
# exact, and by ARPACK and random vectors
SIZES = [12, 150]


class Weights(nn.Module):
    """A model whose output is its weights, whatever the images."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, generator=GENERATOR, dtype=torch.float64))

    def forward(self, x):
        return self.weight


def quadratic(hessian):
    return lambda outputs, labels: 0.5 * outputs @ hessian @ outputs


def squares(outputs, labels):
    return 0.5 * ((outputs[:, 0] - labels) ** 2).mean()


def spread_matrix(size):
    """A symmetric matrix of known eigenvalues, a few of them apart and some negative."""
    root, _ = torch.linalg.qr(torch.randn(size, size, generator=GENERATOR, dtype=torch.float64))
    values = torch.linspace(-1, 1, size, dtype=torch.float64)
    values[-5:] = torch.tensor([3.0, 5.0, 7.5, 11.0, 20.0])
    values[0] = -4
    return (root * values) @ root.T, np.sort(values.numpy())[::-1]


def whole_hessian(model, batches, loss=F.cross_entropy):
    """The Hessian of the mean over all images by autograd alone, row by row, and the names of its rows."""
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    parameters = [model.get_parameter(name) for name in names]
    num_images = sum(len(labels) for _, labels in batches)
    value = sum(len(labels) / num_images * loss(model(images), labels) for images, labels in batches)
    gradient = torch.cat(
        [one.flatten() for one in torch.autograd.grad(value, parameters, create_graph=True, materialize_grads=True)]
    )
    none = tuple(torch.zeros_like(parameter) for parameter in parameters)
    rows = [
        torch.autograd.grad(one, parameters, retain_graph=True, materialize_grads=True) if one.requires_grad else none
        for one in gradient
    ]
    labels = np.repeat(names, [parameter.numel() for parameter in parameters])
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows]).numpy(), labels


class TestClosedForm:
    @pytest.mark.parametrize("size", SIZES)
    def test_quadratic(self, size):
        matrix, values = spread_matrix(size)
        model = Weights(size)
        # as many probes as parameters: an exact trace
        result = resprobe.curvature(model, UNEQUAL, loss=quadratic(matrix), num_probes=size, tol=1e-8, **DOUBLE)
        np.testing.assert_allclose(result.eigenvalue, values[:5], rtol=1e-6)
        assert float(result.trace) == pytest.approx(values.sum(), rel=1e-6)
        assert float(result.trace_sem) == 0
        assert float(result.lowest_eigenvalue) == pytest.approx(-4, rel=1e-6)
        assert bool(result.converged.all())
        assert (result.residual < 1e-7).all()
        theta = model.weight.detach()
        assert float(result.loss) == pytest.approx(float(0.5 * theta @ matrix @ theta), rel=1e-12)
        assert float(result.grad_norm) == pytest.approx(float((matrix @ theta).norm()), rel=1e-12)
        assert result.attrs["bn_mode"] == "none"
        assert int(result.num_params) == size

    def test_lanczos_and_probes(self):
        matrix, values = spread_matrix(150)
        result = resprobe.curvature(Weights(150), UNEQUAL, loss=quadratic(matrix), num_probes=60, tol=1e-8, **DOUBLE)
        np.testing.assert_allclose(result.eigenvalue, values[:5], rtol=1e-6)
        assert float(result.lowest_eigenvalue) == pytest.approx(-4, rel=1e-6)
        # the estimator's variance is twice the sum of the squares beside the diagonal
        off = matrix - torch.diag(matrix.diagonal())
        expected = math.sqrt(2 * float((off**2).sum()) / 60)
        assert float(result.trace_sem) == pytest.approx(expected, rel=0.35)
        assert abs(float(result.trace) - values.sum()) < 4 * expected

    def test_diagonal_needs_one_vector_of_signs(self):
        diagonal = torch.linspace(0.5, 3, 100, dtype=torch.float64)
        result = resprobe.curvature(
            Weights(100), UNEQUAL, loss=quadratic(torch.diag(diagonal)), num_probes=2, num_eigenvalues=1, **DOUBLE
        )
        assert float(result.trace) == pytest.approx(float(diagonal.sum()), rel=1e-12)
        assert float(result.trace_sem) < 1e-12

    @pytest.mark.parametrize("features", [4, 80])
    def test_least_squares_of_unequal_batches(self, features):
        x = torch.randn(11, features, generator=GENERATOR, dtype=torch.float64)
        y = torch.arange(11)
        batches = [(x[:2], y[:2]), (x[2:9], y[2:9]), (x[9:], y[9:])]
        model = nn.Linear(features, 1, bias=False, dtype=torch.float64)
        num = min(features, 5)
        result = resprobe.curvature(
            model, batches, loss=squares, num_eigenvalues=num, num_probes=features, tol=1e-8, **DOUBLE
        )
        hessian = (x.T @ x / 11).numpy()
        np.testing.assert_allclose(result.eigenvalue, np.linalg.eigvalsh(hessian)[::-1][:num], rtol=1e-6)
        assert float(result.trace) == pytest.approx(np.trace(hessian), rel=1e-6)
        residual = (x @ model.weight.detach()[0] - y).numpy()
        assert float(result.loss) == pytest.approx(0.5 * (residual**2).mean(), rel=1e-12)
        assert float(result.grad_norm) == pytest.approx(np.linalg.norm(x.numpy().T @ residual / 11), rel=1e-12)

    @pytest.mark.parametrize("size", [10, 100])
    def test_linear_loss_has_no_curvature(self, size):
        result = resprobe.curvature(Weights(size), UNEQUAL, loss=lambda outputs, labels: outputs.sum(), **DOUBLE)
        assert (result.eigenvalue == 0).all()
        assert bool(result.converged.all())
        assert float(result.trace) == 0
        assert float(result.eigenvalue_grid[int(result.density.argmax("eigenvalue_grid"))]) == pytest.approx(
            0, abs=1e-3
        )

    @pytest.mark.parametrize("size", SIZES)
    def test_all_eigenvalues_one(self, size):
        root, _ = torch.linalg.qr(torch.randn(size, size, generator=GENERATOR, dtype=torch.float64))
        result = resprobe.curvature(Weights(size), UNEQUAL, loss=quadratic(5 * root @ root.T), **DOUBLE)
        np.testing.assert_allclose(result.eigenvalue, 5, rtol=1e-12)
        np.testing.assert_allclose(result.lowest_eigenvalue, 5, rtol=1e-12)
        # the distance between both is rounding alone
        assert result.converged.all()
        assert result.lowest_converged

    def test_a_concave_loss(self):
        # the largest eigenvalues are 0, up to what rounding leaves of the smallest
        side = torch.randn(12, generator=GENERATOR, dtype=torch.float64)
        result = resprobe.curvature(Weights(12), UNEQUAL, loss=quadratic(-torch.outer(side, side)), **DOUBLE)
        np.testing.assert_allclose(result.eigenvalue, 0, atol=1e-14)
        assert result.converged.all()

    def test_parameters_that_the_loss_does_not_depend_on(self):
        class Unused(nn.Linear):
            def __init__(self):
                super().__init__(64, 3, dtype=torch.float64)
                self.aside = nn.Parameter(torch.ones(9, dtype=torch.float64))

        net = nn.Sequential(nn.Flatten(), Unused())
        batches = [(images, labels % 3) for images, labels in UNEQUAL]
        result = resprobe.curvature(net, batches, num_eigenvalues=np.int64(5), **DOUBLE, tol=1e-8)
        hessian, _ = whole_hessian(net, batches)
        values = np.linalg.eigvalsh(hessian)[::-1]
        np.testing.assert_allclose(result.eigenvalue, values[:5], rtol=1e-7)
        assert int(result.num_params) == len(values) == 64 * 3 + 3 + 9
        assert np.isfinite(result.grad_norm)

    def test_few_different_eigenvalues(self):
        """A Lanczos run of 20 steps ends after two of them."""
        diagonal = torch.zeros(100, dtype=torch.float64)
        diagonal[0] = 3
        result = resprobe.curvature(Weights(100), UNEQUAL, loss=quadratic(torch.diag(diagonal)), **DOUBLE)
        np.testing.assert_allclose(result.eigenvalue, [3, 0, 0, 0, 0], atol=1e-12)
        assert bool(result.converged.all())
        assert np.isfinite(result.density).all()


class TestDensity:
    @pytest.mark.parametrize("size", [60, 150])
    def test_integral_and_moments(self, size):
        matrix, values = spread_matrix(size)
        result = resprobe.curvature(Weights(size), UNEQUAL, loss=quadratic(matrix), num_lanczos=40, **DOUBLE)
        grid, density = result.eigenvalue_grid.values, result.density.values
        assert np.trapezoid(density, grid) == pytest.approx(1, rel=1e-9)
        # one random vector stands for the mean over all: 150 eigenvalues leave it an error of about 1/12
        mean = np.trapezoid(density * grid, grid)
        assert mean == pytest.approx(values.mean(), abs=1e-2 if size == 60 else 0.4 * values.std())
        assert grid[0] < values[-1] < values[0] < grid[-1]
        # most eigenvalues lie between -1 and 1, and next to none between 12 and 19
        bulk = (grid > -1.5) & (grid < 1.5)
        assert np.trapezoid(density[bulk], grid[bulk]) > 0.8
        empty = (grid > 13) & (grid < 18)
        assert density[empty].max() < 1e-3 * density.max()


@pytest.fixture(scope="module")
def net():
    """A residual network as small as they come, with statistics as of a trained one, in float64."""
    net = resprobe.build(resprobe.parse_architecture("resnet8", in_channels=1, width=2), seed=1).double()
    return with_statistics(net)


@pytest.fixture
def small():
    """A network of a few fast operations, one of them a normalisation."""
    with torch.random.fork_rng([]):
        torch.manual_seed(2)
        net = nn.Sequential(
            nn.Conv2d(1, 2, 3, stride=2), nn.BatchNorm2d(2), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(18, 10)
        )
    return with_statistics(net.double())


def with_statistics(net):
    generator = torch.Generator().manual_seed(0)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.5, 0.5, generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
            module.weight.data.uniform_(0.5, 1.5, generator=generator)
    return net.eval()


class TestNetworks:
    @pytest.mark.parametrize("mode", ["running", "batch", "folded"])
    def test_product_is_the_change_of_the_gradient(self, net, mode):
        """Against central differences: the product of curvlinops itself is wrong in the mode batch."""
        data = RepeatedBatches(UNEQUAL, CPU, torch.float64)
        subject = in_mode(net, mode, torch.float64, data.example)
        operator = hessians.Hessian(subject, data)
        vector = torch.randn(operator.shape[0], generator=GENERATOR, dtype=torch.float64)
        direction = operator.as_tensors(vector.numpy())
        own = dict(subject.named_parameters())

        def gradient(step):
            moved = {name: (own[name] + step * one).detach().requires_grad_() for name, one in direction.items()}
            value = sum(len(y) / 12 * F.cross_entropy(functional_call(subject, moved, (x,)), y) for x, y in UNEQUAL)
            return torch.cat([one.flatten() for one in torch.autograd.grad(value, list(moved.values()))])

        expected = (gradient(1e-6) - gradient(-1e-6)) / 2e-6
        error = float((operator @ vector - expected).norm() / expected.norm())
        assert error < 1e-6

    def test_blocks_are_those_of_the_whole(self, net):
        net.layer2.requires_grad_(False)
        net.layer3.requires_grad_(False)
        try:
            hessian, names = whole_hessian(net, UNEQUAL)
            # as many probes as parameters: exact traces
            result = resprobe.curvature(
                net, UNEQUAL, blocks="stage", num_eigenvalues=3, num_probes=len(names), num_lanczos=4, **DOUBLE
            )
            by_unit = parameter_blocks(net, IMAGES[:2], net, "unit")
        finally:
            net.requires_grad_(True)
        np.testing.assert_allclose(result.eigenvalue, np.linalg.eigvalsh(hessian)[::-1][:3], rtol=1e-6)
        assert float(result.trace) == pytest.approx(np.trace(hessian), rel=1e-6)
        owners = {"stem": ("conv1", "bn1"), "stage 1": ("layer1",), "head": ("linear",)}
        assert result.block.values.tolist() == list(owners)
        assert float(result.block_trace.sum()) == pytest.approx(float(result.trace), rel=1e-9)
        for block, modules in owners.items():
            chosen = np.isin([str(name).partition(".")[0] for name in names], modules)
            expected = np.linalg.eigvalsh(hessian[np.ix_(chosen, chosen)])[::-1][:3]
            found = result.sel(block=block)
            np.testing.assert_allclose(found.block_eigenvalue, expected, rtol=1e-6, atol=1e-12)
            assert int(found.block_num_params) == chosen.sum()
        assert list(by_unit) == ["stem", "layer1.0", "head"]

    def test_folded_parameters_keep_their_place(self, net):
        folded = in_mode(net, "folded", torch.float64, IMAGES[:2])
        found = parameter_blocks(net, IMAGES[:2], folded, "stage")
        assert list(found) == ["stem", "stage 1", "stage 2", "stage 3", "head"]
        assert found["stage 2"] == [
            f"network.folded_layer2_0_bn{n}.{what}" for n in (1, 2) for what in ("weight", "bias")
        ]
        assert sum(map(len, found.values())) == len(list(folded.parameters()))

    def test_top_eigenvectors(self, net):
        data = RepeatedBatches(UNEQUAL, CPU, torch.float64)
        subject = in_mode(net, "running", torch.float64, data.example)
        values, vectors = eigenpairs.top_eigenvectors(subject, data, 2, seed=0, tol=1e-6)
        own = dict(subject.named_parameters())
        assert [{name: one.shape for name, one in vector.items()} for vector in vectors] == [
            {name: parameter.shape for name, parameter in own.items()}
        ] * 2
        # the second derivative of the loss along each is its eigenvalue
        for value, vector in zip(values, vectors, strict=True):
            assert sum(float((one**2).sum()) for one in vector.values()) == pytest.approx(1, rel=1e-9)

            def along(t, vector=vector):
                moved = {name: own[name] + t * one for name, one in vector.items()}
                return sum(len(y) / 12 * F.cross_entropy(functional_call(subject, moved, (x,)), y) for x, y in UNEQUAL)

            t = torch.zeros((), dtype=torch.float64, requires_grad=True)
            (slope,) = torch.autograd.grad(along(t), t, create_graph=True)
            (second,) = torch.autograd.grad(slope, t)
            assert float(second) == pytest.approx(value, rel=1e-5)

    def test_trace_is_that_of_curvlinops(self, small):
        from curvlinops import hutchinson_trace  # after resprobe, which keeps a warning of its import quiet

        data = RepeatedBatches(UNEQUAL, CPU, torch.float64)
        operator = hessians.Hessian(in_mode(small, "running", torch.float64, data.example), data)
        trace, _ = spectra.estimate_trace(operator, 3, seed=4)
        with torch.random.fork_rng([]):
            torch.manual_seed(4)
            assert trace == pytest.approx(float(hutchinson_trace(operator, 3)), rel=1e-10)
        # two samples a and b: their mean is off from a by |a - b| / 2, which is the standard error
        (first, alone), (both, sem) = (spectra.estimate_trace(operator, number, seed=4) for number in (1, 2))
        assert math.isnan(alone)
        assert sem == pytest.approx(abs(both - first), rel=1e-9)

    def test_batch_size_matters_in_the_mode_batch_alone(self, small):
        options = {"num_eigenvalues": 1, "num_probes": 2, "num_lanczos": 2, "tol": 1e-4, **DOUBLE}
        whole = [(IMAGES, LABELS)]
        one, two = (resprobe.curvature(small, data, **options) for data in (whole, UNEQUAL))
        np.testing.assert_allclose(one.eigenvalue, two.eigenvalue, rtol=1e-6)
        np.testing.assert_allclose(one.trace, two.trace, rtol=1e-6)
        one, two = (resprobe.curvature(small, data, bn_mode="batch", **options) for data in (whole, UNEQUAL))
        assert abs(float(one.eigenvalue[0] / two.eigenvalue[0]) - 1) > 1e-3

    def test_seed(self, small):
        options = {"num_eigenvalues": 1, "num_probes": 2, "num_lanczos": 3, **DOUBLE}
        first, again, other = (resprobe.curvature(small, UNEQUAL, seed=seed, **options) for seed in (1, 1, 2))
        assert first.drop_attrs().equals(again.drop_attrs())
        assert float(first.trace) != float(other.trace)
        np.testing.assert_allclose(first.eigenvalue, other.eigenvalue, rtol=1e-3)
        results.check(first)

    def test_unconverged_says_so(self, monkeypatch):
        matrix, values = spread_matrix(150)
        monkeypatch.setattr(eigenpairs, "_MAX_RESTARTS", 1)
        options = {"num_probes": 2, "num_lanczos": 2, "num_eigenvalues": 12, "tol": 1e-12}
        result = resprobe.curvature(Weights(150), UNEQUAL, loss=quadratic(matrix), **options, **DOUBLE)
        assert not bool(result.converged.all())
        # each residual is the distance within which there is an eigenvalue
        distance = np.abs(result.eigenvalue.values[:, None] - values).min(1)
        assert (distance <= result.residual.values + 1e-12).all()


class TestRobust:
    @pytest.mark.parametrize("size", SIZES)
    def test_what_is_not_finite_stays_so(self, size):
        result = resprobe.curvature(
            Weights(size), UNEQUAL, loss=lambda outputs, labels: (outputs**2).sum() * math.inf, **DOUBLE
        )
        assert float(result.loss) == math.inf
        assert result.eigenvalue.isnull().all()
        assert not result.converged.any()
        assert np.isnan(result.trace)
        results.check(result)

    def test_memory_does_not_grow(self):
        model = Weights(70)
        matrix, _ = spread_matrix(70)
        batches = [(torch.ones(2000, 40), torch.zeros(2000, dtype=torch.int64))]

        def call():
            options = {"num_eigenvalues": 1, "num_probes": 2, "num_lanczos": 2}
            resprobe.curvature(model, batches, loss=quadratic(matrix), **options, **DOUBLE)

        for _ in range(5):
            call()
        gc.collect()
        objects, peak = len(gc.get_objects()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(25):
            call()
        gc.collect()
        assert len(gc.get_objects()) - objects < 10
        # in KiB: the images kept in each call would be 8,000
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 4_000

    def test_an_iterator_is_kept(self, small):
        options = {"num_eigenvalues": 1, "num_probes": 2, "num_lanczos": 2, **DOUBLE}
        once = resprobe.curvature(small, iter(UNEQUAL), **options)
        xr_equal = once.drop_attrs().equals(resprobe.curvature(small, UNEQUAL, **options).drop_attrs())
        assert xr_equal

    def test_batches_that_change(self, small):
        class Shuffled:
            def __iter__(self):
                order = torch.randperm(12)
                return iter([(IMAGES[order], LABELS[order])])

        with pytest.raises(ResprobeError, match="batches: expected the same images in every pass, got others in batch"):
            resprobe.curvature(small, Shuffled(), **DOUBLE)

    def test_flipped_images(self, small):
        class Flipped:
            passes = 0

            def __iter__(self):
                self.passes += 1
                # of the same sum, exactly
                images = IMAGES.mul(8).round()
                return iter([(images.flip(3) if self.passes > 1 else images, LABELS)])

        with pytest.raises(ResprobeError, match="got others in batch 1"):
            resprobe.curvature(small, Flipped(), **DOUBLE)

    def test_labels_that_change(self):
        data = RepeatedBatches(batches := [(IMAGES, LABELS.clone())], CPU, torch.float64)
        assert len(list(data)) == 1
        batches[0][1][:2] = LABELS[:2].flip(0)
        with pytest.raises(ResprobeError, match="got others in batch 1"):
            list(data)

    def test_an_empty_batch_counts_for_nothing(self, small):
        options = {"num_eigenvalues": 1, "num_probes": 2, "num_lanczos": 2, **DOUBLE}
        holes = [UNEQUAL[0], (IMAGES[:0], LABELS[:0]), UNEQUAL[1]]
        for mode in ("running", "batch"):
            with_hole, without = (resprobe.curvature(small, data, bn_mode=mode, **options) for data in (holes, UNEQUAL))
            assert with_hole.drop_attrs().equals(without.drop_attrs())

    @pytest.mark.parametrize(
        ("model", "message"),
        [
            (nn.LSTM(8, 4), "model LSTM: expected a tensor as output, got tuple"),
            (nn.Conv2d(1, 5, 1), r"outputs: expected logits \(2, classes\), got shape \(2, 5, 8, 8\)"),
        ],
    )
    def test_models_without_logits(self, model, message):
        images = IMAGES[:, 0] if isinstance(model, nn.LSTM) else IMAGES
        with pytest.raises(ResprobeError, match=message):
            resprobe.curvature(model.double(), [(images, LABELS)], **DOUBLE)

    def test_models_that_draw(self):
        class Noisy(nn.Linear):
            def forward(self, x):
                return super().forward(x.flatten(1)) + torch.rand(())

        with pytest.raises(ResprobeError, match="Noisy: expected the same outputs each time"):
            resprobe.curvature(Noisy(64, 10).double(), UNEQUAL, **DOUBLE)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"bn_mode": "none"}, "bn_mode: expected running or batch or folded for ResidualNetwork, got 'none'"),
            ({"num_eigenvalues": 0}, "num_eigenvalues: expected a whole number from 1, got 0"),
            ({"num_eigenvalues": 10**6}, r"num_eigenvalues: expected at most \d+, the number of parameters"),
            ({"num_eigenvalues": True}, "num_eigenvalues: expected a whole number from 1, got True"),
            ({"tol": "x"}, "tol: expected a number between 0 and 1, got x"),
            ({"tol": math.nan}, "tol: expected a number between 0 and 1, got nan"),
            ({"seed": 2**63}, "seed: expected at most 9223372036854775807"),
            ({"num_probes": 1}, "num_probes: expected a whole number from 2, got 1"),
            ({"num_lanczos": 1.5}, "num_lanczos: expected a whole number from 2, got 1.5"),
            ({"tol": 0}, "tol: expected a number between 0 and 1, got 0"),
            ({"seed": -1}, "seed: expected a whole number from 0, got -1"),
            ({"blocks": "layer"}, "blocks: expected stage or unit, got 'layer'"),
            ({"precision": "bfloat16"}, "precision: expected float32 or float64"),
            ({"loss": lambda outputs, labels: outputs}, "loss: expected one number that depends on the outputs"),
        ],
    )
    def test_options(self, net, options, message):
        with pytest.raises(ResprobeError, match=message) as error:
            resprobe.curvature(net, UNEQUAL, **{**DOUBLE, **options})
        assert "\n" not in str(error.value)

    def test_frozen(self, make_net):
        with pytest.raises(ResprobeError, match="expected trainable parameters, got none"):
            resprobe.curvature(make_net("resnet8").requires_grad_(False), [(IMAGES.float(), LABELS)])

    def test_single_image_in_the_mode_batch(self, small):
        with pytest.raises(ResprobeError, match="batch statistics, got one .image 11."):
            resprobe.curvature(
                small, [(IMAGES[:11], LABELS[:11]), (IMAGES[11:], LABELS[11:])], bn_mode="batch", **DOUBLE
            )
