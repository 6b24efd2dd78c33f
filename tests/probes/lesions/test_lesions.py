import functools
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

import resprobe
from resprobe import results
from resprobe.data import open_data
from resprobe.engine import quick_convolutions, scoring
from resprobe.engine.kernels.availability import obstacle
from resprobe.errors import ResprobeError, ResprobeWarning


@pytest.fixture(params=["direct", "winograd"])
def wide_net(request, make_net, monkeypatch):
    """Build nets that are wide enough for quick convolutions, which are asked for or not."""
    is_quick = request.param == "winograd"
    if is_quick and obstacle() is not None:
        pytest.skip(f"no kernels: {obstacle()}")
    monkeypatch.setenv("RESPROBE_KERNELS", str(int(is_quick)))
    monkeypatch.setattr(quick_convolutions, "WORTHWHILE", 0 if is_quick else math.inf)
    return functools.partial(make_net, width=16)


def hooked_counts(net, batches, units, *, newly=False):
    """The slow way: one whole pass with hooks per deletion."""

    def correct(names):
        with resprobe.deleted(net, names), torch.inference_mode():
            return torch.cat([net(images).argmax(1) == labels for images, labels in batches])

    intact = correct([])
    rows = [correct([name]) for name in units]
    return (
        int(intact.sum()),
        [int(row.sum()) for row in rows],
        [int((intact & ~row).sum()) for row in rows],
        [int((row & ~intact).sum()) for row in rows],
    )


def assert_counts_of_hooks(dataset, net, batches):
    baseline, correct, newly_wrong, newly_right = hooked_counts(net, batches, dataset.unit.values)
    assert int(dataset.baseline_num_correct) == baseline
    assert dataset.num_correct.values.tolist() == correct
    assert dataset.num_newly_wrong.values.tolist() == newly_wrong
    assert dataset.num_newly_right.values.tolist() == newly_right


class TestLesion:
    @pytest.mark.parametrize("norm", ["batch", "none"])
    @pytest.mark.parametrize("shortcut", ["pad", "projection"])
    @pytest.mark.parametrize("name", ["resnet14", "preresnet14"])
    def test_counts_of_one_hooked_pass_per_deletion(self, wide_net, digits, name, shortcut, norm):
        net = wide_net(name, shortcut=shortcut, norm=norm)
        assert_counts_of_hooks(resprobe.lesion(net, digits), net, digits)

    @pytest.mark.parametrize(("name", "by"), [("plain14", None), ("plain14", "block"), ("plain8", "layer")])
    def test_plain_nets(self, wide_net, digits, name, by):
        net = wide_net(name)
        dataset = resprobe.lesion(net, digits, by=by)
        assert dataset.sizes["unit"] == {None: 12, "block": 6, "layer": 6}[by]
        assert_counts_of_hooks(dataset, net, digits)

    def test_losses_of_hooks(self, make_net, digits):
        net = make_net().double()
        batches = [(images.double(), labels) for images, labels in digits]
        dataset = resprobe.lesion(net, batches, precision="float64")
        for unit in dataset.unit.values[[0, 3, 8]]:
            with resprobe.deleted(net, [unit]), torch.inference_mode():
                loss = sum(
                    nn.functional.cross_entropy(net(images), labels, reduction="sum").item()
                    for images, labels in batches
                )
            np.testing.assert_allclose(dataset.loss.sel(unit=unit), loss / 60, rtol=1e-10)

    def test_hand_set_net(self, scalar_net):
        """Logits (y, 0) and label 1: the loss is log(1 + e^y), with y = 12, 4, 3."""
        batches = [(torch.ones(1, 1), torch.ones(1, dtype=torch.int64))]
        dataset = resprobe.lesion(scalar_net, batches, precision="float64")
        y = [math.log(math.expm1(float(loss))) for loss in (dataset.baseline_loss, *dataset.loss)]
        np.testing.assert_allclose(y, [12, 4, 3], rtol=1e-5)
        both = resprobe.lesion_curve(scalar_net, batches, num_deleted=[2], draws=1, precision="float64")
        np.testing.assert_allclose(math.log(math.expm1(both.loss.item())), 1, rtol=1e-5)

    @pytest.mark.parametrize("batch_size", [1, 7, 60, 1000])
    def test_batch_size_is_irrelevant(self, make_net, digits, batch_size):
        net = make_net("resnet8")
        other = open_data("digits", num_images=60, batch_size=batch_size)
        one, two = (resprobe.lesion(net, data, per_image=True) for data in (digits, other))
        xr.testing.assert_equal(one.correct, two.correct)
        xr.testing.assert_allclose(one.image_loss, two.image_loss, rtol=1e-4)

    def test_order_of_images_is_irrelevant(self, make_net, digits):
        net = make_net("resnet8")
        images, labels = (torch.cat(parts) for parts in zip(*digits, strict=True))
        order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
        one = resprobe.lesion(net, digits)
        two = resprobe.lesion(net, [(images[order], labels[order])])
        xr.testing.assert_equal(one.num_correct, two.num_correct)

    def test_per_image_results_add_up(self, make_net, digits):
        dataset = resprobe.lesion(make_net("resnet8"), digits, per_image=True)
        assert (dataset.correct.sum("image") == dataset.num_correct).all()
        xr.testing.assert_allclose(dataset.image_loss.mean("image"), dataset.loss)
        assert dataset.label.values.tolist() == [int(y) for _, labels in digits for y in labels]
        results.check(dataset)

    def test_subset_in_the_order_asked_for(self, make_net, digits):
        net = make_net()
        every = resprobe.lesion(net, digits)
        some = resprobe.lesion(net, digits, units=["layer3.1", "layer1.0"])
        assert some.unit.values.tolist() == ["layer3.1", "layer1.0"]
        xr.testing.assert_equal(some.num_correct, every.num_correct.sel(unit=["layer3.1", "layer1.0"]))

    def test_unit_that_cannot_be_deleted(self, digits):
        net = nn.Sequential(
            *(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU()),
            *(nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)),
        ).eval()
        dataset = resprobe.lesion(net, digits, per_image=True)
        assert dataset.status.values.tolist() == ["no bypass leads from shape (4, 8, 8) to (4, 6, 6)", "ok"]
        assert dataset.num_correct.values[0] == -1
        assert np.isnan(dataset.error.values).tolist() == [True, False]
        assert np.isnan(dataset.error_high.values).tolist() == [True, False]
        results.check(dataset)

    def test_bfloat16_is_near(self, make_net, digits):
        net = make_net("resnet8")
        exact, rough = (resprobe.lesion(net, digits, precision=name) for name in ("float32", "bfloat16"))
        assert (np.abs(exact.loss - rough.loss) < 0.1 * exact.loss).all()
        assert not np.array_equal(exact.loss, rough.loss)

    def test_training_mode_of_the_model_is_irrelevant(self, make_net, digits):
        net = make_net("resnet8")
        quiet = resprobe.lesion(net, digits)
        xr.testing.assert_equal(quiet, resprobe.lesion(net.train(), digits))

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_number_type_of_the_model_is_not_that_of_the_images(self, make_net, digits, dtype):
        net = make_net("resnet8")
        exact = resprobe.lesion(net, digits)
        other = resprobe.lesion(net.to(dtype), digits)
        assert (np.abs(exact.loss - other.loss) < 0.1 * exact.loss).all()

    def test_deletion_that_overflows_counts_as_wrong(self, scalar_net):
        with torch.no_grad():
            scalar_net.first.scale.weight.fill_(-1 + 1e-30)
            scalar_net.second.scale.weight.fill_(1e38)
        batches = [(torch.full((1, 1), 1e10), torch.zeros(1, dtype=torch.int64))]
        dataset = resprobe.lesion(scalar_net, batches)
        assert dataset.num_correct.sel(unit="first") == 0
        assert not np.isfinite(dataset.loss.sel(unit="first"))

    @pytest.mark.gpu
    def test_counts_on_a_gpu(self, make_net, digits):
        net = make_net()
        on_cpu = resprobe.lesion(net, digits)
        on_gpu = resprobe.lesion(net.cuda(), digits)
        assert on_gpu.attrs["device"].startswith("cuda")
        assert np.abs(on_gpu.num_correct - on_cpu.num_correct).max() <= 1

    @pytest.mark.parametrize("file", ["akamaster-resnet20.th"])
    def test_real_checkpoint(self, real, file):
        expected = json.loads((real / "expected-lesions.json").read_text())[file]
        baseline = expected.pop("baseline")
        checkpoint = resprobe.load(real / file, arch="resnet20")
        data = open_data(f"npz:{real / 'cifar10-test-1000.npz'}", normalisation="imagenet")
        dataset = resprobe.lesion(checkpoint.model, data, provenance=checkpoint.provenance)
        assert int(dataset.baseline_num_correct) == baseline["num_correct"]
        assert dict(zip(dataset.unit.values, dataset.num_correct.values, strict=True)) == {
            unit: row["num_correct"] for unit, row in expected.items()
        }
        np.testing.assert_allclose(dataset.loss, [row["mean_loss"] for row in expected.values()], atol=1e-4)


class TestLesionCurve:
    def test_counts_of_hooks(self, wide_net, digits):
        net = wide_net()
        dataset = resprobe.lesion_curve(net, digits, num_deleted=[1, 4, 9], draws=2, seed=5)
        for size in dataset.num_deleted.values:
            for draw in range(2):
                row = dataset.sel(num_deleted=size, draw=draw)
                gone = row.unit.values[row.deleted.values].tolist()
                assert len(gone) == size
                with resprobe.deleted(net, gone), torch.inference_mode():
                    correct = sum(int((net(x).argmax(1) == y).sum()) for x, y in digits)
                assert int(row.num_correct) == correct
        results.check(dataset)

    def test_empty_lesion_is_the_baseline_bit_for_bit(self, wide_net, digits):
        dataset = resprobe.lesion_curve(wide_net(), digits, num_deleted=[0], draws=2)
        assert (dataset.loss == dataset.baseline_loss).all()
        assert (dataset.num_correct == dataset.baseline_num_correct).all()

    def test_draws_come_from_the_seed(self, make_net, digits):
        def deleted(**options):
            options = {"num_deleted": [3, 5], "draws": 3, "seed": 1, **options}
            return resprobe.lesion_curve(make_net(), digits, **options).deleted

        one = deleted()
        xr.testing.assert_equal(one, deleted())
        assert not one.equals(deleted(seed=2))
        more = deleted(num_deleted=[2, 3, 5], draws=5)
        xr.testing.assert_equal(more.sel(num_deleted=[3, 5], draw=[0, 1, 2]), one)

    @pytest.mark.parametrize("sizes", [[], [10], [-1], [2, 2]])
    def test_sizes_out_of_range(self, make_net, digits, sizes):
        with pytest.raises(ResprobeError, match="num_deleted: expected different whole numbers from 0 to 9"):
            resprobe.lesion_curve(make_net(), digits, num_deleted=sizes)

    def test_no_draws(self, make_net, digits):
        with pytest.raises(ResprobeError, match="draws: expected 1 or more, got 0"):
            resprobe.lesion_curve(make_net("resnet8"), digits, num_deleted=[1], draws=0)


class TestErrors:
    def test_unknown_unit(self, make_net, digits):
        with pytest.raises(ResprobeError, match=r"got 'layer4.0'; did you mean layer"):
            resprobe.lesion(make_net("resnet8"), digits, units=["layer4.0"])

    def test_unit_named_twice(self, make_net, digits):
        with pytest.raises(ResprobeError, match="expected different names, got layer1.0 more than once"):
            resprobe.lesion(make_net("resnet8"), digits, units=["layer1.0", "layer2.0", "layer1.0"])

    def test_unknown_precision(self, make_net, digits):
        with pytest.raises(ResprobeError, match="expected one of float32, float64, bfloat16, got 'float8'"):
            resprobe.lesion(make_net("resnet8"), digits, precision="float8")

    def test_label_out_of_range(self, make_net):
        batches = [
            (torch.zeros(2, 1, 8, 8), torch.tensor([0, 1])),
            (torch.zeros(2, 1, 8, 8), torch.tensor([9, 10])),
        ]
        with pytest.raises(ResprobeError, match="expected 0 to 9, the model's classes, got 10 at image 3"):
            resprobe.lesion(make_net("resnet8"), batches)

    def test_loss_that_is_not_finite(self, make_net):
        images, labels = torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64)
        images[2] = torch.nan
        with pytest.raises(ResprobeError, match="expected finite numbers, got nan at image 6"):
            resprobe.lesion(make_net("resnet8"), [(torch.zeros(4, 1, 8, 8), labels), (images, labels)])

    def test_deletion_whose_loss_is_not_finite(self, scalar_net):
        class Logarithm(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = scalar_net

            def forward(self, x):
                return torch.log(self.net(x) + torch.tensor([-3.5, 1.0]))

        # 12 x intact, 4 x and 3 x with one unit deleted: at x = 1 only the last one has no logarithm
        dataset = resprobe.lesion(Logarithm(), [(torch.ones(5, 1), torch.zeros(5, dtype=torch.int64))])
        assert dataset.baseline_num_correct == 5
        assert np.isfinite(dataset.loss.values).tolist() == [True, False]
        assert dataset.num_correct.values.tolist() == [0, 0]
        assert dataset.error.values.tolist() == [1, 1]

    def test_masked_classes_are_no_failure(self, make_net, digits):
        class Masked(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = make_net("resnet8")

            def forward(self, x):
                return self.net(x).masked_fill(torch.arange(10) == 9, -torch.inf)

        batches = [(images, labels.clamp(max=8)) for images, labels in digits]
        dataset = resprobe.lesion(Masked(), batches)
        assert_counts_of_hooks(dataset, Masked(), batches)

    def test_normalisation_without_statistics(self, make_net, digits):
        net = make_net("resnet8")
        net.layer1[0].bn1 = nn.BatchNorm2d(4, track_running_stats=False)
        with pytest.raises(ResprobeError, match=r"expected .* stored statistics, got layer1.0.bn1 without"):
            resprobe.lesion(net, digits)

    def test_random_state_of_a_model_that_draws(self, make_net, digits):
        class Noisy(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = make_net("resnet8")

            def forward(self, x):
                return self.net(x + 0 * torch.randn_like(x))

        before = torch.get_rng_state()
        resprobe.lesion(Noisy(), digits)
        assert torch.equal(torch.get_rng_state(), before)

    @pytest.mark.parametrize(
        ("batches", "message"),
        [
            ([], "expected at least one batch, got none"),
            ([torch.zeros(2, 1, 8, 8)], r"expected pairs \(images, labels\), got Tensor"),
            (
                [(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.zeros(2))],
                "expected floating point, got torch.uint8",
            ),
            (
                [(torch.zeros(2, 1, 8, 8), torch.zeros(3, dtype=torch.int64))],
                "expected 2 integers, got torch.int64",
            ),
            ([(torch.zeros(2, 1, 8, 8), torch.zeros(2, dtype=torch.bool))], "expected 2 integers, got torch.bool"),
            ([(torch.zeros(0, 1, 8, 8), torch.zeros(0, dtype=torch.int64))], "expected at least one image"),
            ([("a.png", "cat")], r"expected pairs \(images, labels\) of tensors, got str and str"),
            (None, "expected an iterable of pairs .*, got NoneType"),
            (
                [(torch.zeros(2, c, 8, 8), torch.zeros(2, dtype=torch.int64)) for c in (1, 3)],
                r"expected images of 1 channels .*, got shape \(2, 3, 8, 8\)",
            ),
        ],
    )
    def test_batches_that_are_none(self, make_net, batches, message):
        with pytest.raises(ResprobeError, match=message):
            resprobe.lesion(make_net("resnet8"), batches)

    def test_number_formats_of_images(self, make_net, digits):
        batches = [(images.bfloat16(), labels) for images, labels in digits]
        assert resprobe.lesion(make_net("resnet8"), batches).num_images == 60

    @pytest.mark.parametrize(
        ("units", "message"),
        [([], "expected at least one name, got none"), ("layer1.0", r"write \['layer1.0'\]"), ([1], "got 1")],
    )
    def test_units_that_are_no_names(self, make_net, digits, units, message):
        with pytest.raises(ResprobeError, match=message):
            resprobe.lesion(make_net("resnet8"), digits, units=units)

    def test_units_in_an_array(self, make_net, digits):
        dataset = resprobe.lesion(make_net("resnet8"), digits, units=np.array(["layer2.0"]))
        assert json.loads(dataset.attrs["settings"])["units"] == ["layer2.0"]


class TestSizes:
    def test_each_draw_has_a_seed_of_its_own(self, make_net, digits):
        dataset = resprobe.lesion_curve(make_net(), digits, num_deleted=[2, 3], draws=2, seed=5)
        for size in (2, 3):
            for draw in (0, 1):
                expected = np.random.default_rng([5, size, draw]).choice(range(9), size, replace=False)
                found = np.flatnonzero(dataset.deleted.sel(num_deleted=size, draw=draw))
                assert found.tolist() == sorted(expected)

    @pytest.mark.parametrize("sizes", [np.array([1, 2]), range(1, 3), (n for n in (1, 2))], ids=type)
    def test_any_integers(self, make_net, digits, sizes):
        dataset = resprobe.lesion_curve(make_net("resnet8"), digits, num_deleted=sizes, draws=2)
        assert json.loads(dataset.attrs["settings"])["num_deleted"] == [1, 2]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"num_deleted": 2}, "num_deleted: expected whole numbers, got 2"),
            ({"num_deleted": [1.5]}, r"num_deleted: expected whole numbers, got \[1.5\]"),
            ({"num_deleted": "1:2"}, "num_deleted: expected whole numbers, got '1:2'"),
            ({"num_deleted": range(1, 21)}, "from 0 to 9, got 1, 2, 3 ... 20; choose others"),
            ({"num_deleted": [1], "seed": -1}, "seed: expected a whole number from 0, got -1"),
            ({"num_deleted": [1], "seed": None}, "seed: expected a whole number from 0, got None"),
            ({"num_deleted": [1], "draws": 2.0}, "draws: expected 1 or more, got 2.0"),
        ],
    )
    def test_what_is_none(self, make_net, digits, options, message):
        with pytest.raises(ResprobeError, match=message):
            resprobe.lesion_curve(make_net(), digits, **options)


class TestModels:
    def test_checkpoint_in_place_of_its_model(self, make_net, digits):
        checkpoint = SimpleNamespace(model=make_net("resnet8"))
        with pytest.raises(ResprobeError, match="expected a torch.nn.Module, got SimpleNamespace; give its .model"):
            resprobe.lesion(checkpoint, digits)

    @pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
    def test_script(self, make_net, digits):
        script = torch.jit.trace(make_net("resnet8"), torch.zeros(1, 1, 8, 8))
        with pytest.raises(ResprobeError, match="expected a Python module, got TorchScript"):
            resprobe.lesion(script, digits)

    def test_forward_that_refuses_the_images(self, digits):
        class Choosy(nn.Module):
            def forward(self, x):
                raise AssertionError("wrong size\nof image")

        with pytest.raises(ResprobeError, match="images of shape .* got wrong size; check"):
            resprobe.lesion(Choosy(), digits)


def test_memory_runs_out(make_net, digits, monkeypatch):
    net = make_net("resnet8")
    expected = resprobe.lesion(net, digits, per_image=True)
    whole = scoring.run_plans

    def small(segments, plans, images):
        for index, given in enumerate(whole(segments, plans, images)):
            if index == 2 and len(images) > 10:
                raise torch.OutOfMemoryError("CUDA out of memory")
            yield given

    monkeypatch.setattr(scoring, "run_plans", small)
    with pytest.warns(ResprobeWarning) as notices:
        result = resprobe.lesion(net, digits, per_image=True)
    assert str(notices[0].message) == "cpu has no room for 25 images at a time; going on with 12"
    for name in ("num_correct", "num_newly_wrong", "num_newly_right", "correct", "label"):
        xr.testing.assert_equal(result[name], expected[name])
    xr.testing.assert_allclose(result.image_loss, expected.image_loss)
