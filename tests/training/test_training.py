import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

import resprobe.training.resuming
import resprobe.training.runs
from resprobe import results
from resprobe.data import open_data
from resprobe.errors import ResprobeError
from resprobe.networks import build, parse_architecture
from resprobe.training.augmentation import epoch_batches
from resprobe.training.loop import Split, deterministic_cudnn, evaluate, make_optimizer, train_epoch
from resprobe.training.recipe import Recipe, default_recipe, learning_rate
from resprobe.training.runs import train

TINY = parse_architecture("resnet8", width=2, in_channels=1)
# Everything that could keep state between epochs is on.
RECIPE = Recipe(epochs=3, batch_size=32, clip=1.0, max_shift=1, flip=True, schedule="cosine", seed=5)


def open_split(split: str, num_images: int = 96, **options):
    return open_data("digits", split=split, num_images=num_images, **options)


def train_tiny(out: Path, *, architecture=TINY, recipe=RECIPE, num_images=96, **options) -> xr.Dataset:
    train_data, test_data = open_split("train", num_images), open_split("test", 50)
    return train(architecture, train_data, test_data, recipe=recipe, out=out, **options)


def read(path: Path) -> dict:
    return torch.load(path, weights_only=True)


def assert_same_training(out: Path, log: xr.Dataset, reference: tuple[Path, xr.Dataset]) -> None:
    """The same weights and the same log, bit for bit, and nothing left behind."""
    reference_out, reference_log = reference
    state, reference_state = read(out)["state_dict"], read(reference_out)["state_dict"]
    assert list(state) == list(reference_state)
    assert all(torch.equal(state[name], reference_state[name]) for name in state)
    assert log.drop_attrs().identical(reference_log.drop_attrs())
    assert results.open(out.with_name(f"{out.stem}-training.nc")).identical(log)
    leftovers = [path.name for path in out.parent.iterdir() if "partial" in path.name]
    assert leftovers == []


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    """A training that nothing interrupted."""
    out = tmp_path_factory.mktemp("reference") / "net.pt"
    return out, train_tiny(out)


class TestRecipe:
    def test_digits(self):
        recipe = default_recipe(parse_architecture("plain56"), "digits")
        assert (recipe.epochs, recipe.batch_size, recipe.max_shift, recipe.flip) == (40, 32, 1, False)
        assert (recipe.learning_rate, recipe.momentum, recipe.weight_decay, recipe.clip) == (
            0.025,
            0.9,
            1e-4,
            0,
        )

    def test_cifar_as_in_the_paper(self):
        recipe = default_recipe(parse_architecture("resnet110"), "cifar10")
        assert (recipe.epochs, recipe.batch_size, recipe.max_shift, recipe.flip) == (164, 128, 4, True)

    def test_depth_makes_no_difference(self):
        recipes = {default_recipe(parse_architecture(f"plain{depth}"), "digits") for depth in (20, 56, 110)}
        assert len(recipes) == 1

    def test_unknown_data_are_not_augmented(self):
        recipe = default_recipe(parse_architecture("resnet20"), "npz:mine.npz")
        assert (recipe.max_shift, recipe.flip) == (0, False)

    def test_without_normalisation(self):
        recipe = default_recipe(parse_architecture("resnet20", norm="none"), "digits", epochs=3)
        assert (recipe.learning_rate, recipe.clip, recipe.epochs) == (0.05, 1.0, 3)

    def test_unknown_override(self):
        with pytest.raises(ResprobeError, match="recipe: expected fields of epochs, .*, got lr; correct"):
            default_recipe(TINY, "digits", lr=0.1)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("epochs", 0),
            ("epochs", 1.5),
            ("batch_size", 0),
            ("learning_rate", 0.0),
            ("learning_rate", float("nan")),
            ("momentum", -0.1),
            ("weight_decay", float("inf")),
            ("schedule", "linear"),
            ("precision", "float16"),
            ("seed", -1),
        ],
    )
    def test_values_out_of_range(self, field, value):
        with pytest.raises(ResprobeError, match=f"^{field}: expected .*, got {value!r}; "):
            Recipe(**{field: value})

    def test_steps(self):
        recipe = Recipe(epochs=8, learning_rate=0.5, warmup_epochs=1)
        rates = [learning_rate(recipe, epoch) for epoch in range(1, 9)]
        assert rates == pytest.approx([0.05, 0.5, 0.5, 0.5, 0.05, 0.05, 0.005, 0.005])

    def test_cosine(self):
        recipe = Recipe(epochs=4, learning_rate=1.0, warmup_epochs=0, schedule="cosine")
        rates = [learning_rate(recipe, epoch) for epoch in range(1, 5)]
        assert rates == pytest.approx([1.0, 0.5 + 0.5 * 0.5**0.5, 0.5, 0.5 - 0.5 * 0.5**0.5])


class TestAugmentation:
    images = torch.arange(1.0, 1 + 10 * 2 * 3 * 4).reshape(10, 2, 3, 4)
    labels = torch.arange(10)

    def epoch(self, epoch: int = 1, **options) -> tuple[torch.Tensor, torch.Tensor]:
        recipe = Recipe(batch_size=4, **options)
        batches = list(epoch_batches(self.images, self.labels, recipe=recipe, epoch=epoch))
        assert [len(labels) for _, labels in batches] == [4, 4, 2]
        images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
        return images, labels

    def test_without_augmentation_an_epoch_is_a_permutation(self):
        images, labels = self.epoch()
        assert sorted(labels.tolist()) == list(range(10))
        assert labels.tolist() != list(range(10))
        assert torch.equal(images, self.images[labels])

    def test_shifts_and_flips_are_what_they_say(self):
        images, labels = self.epoch(max_shift=1, flip=True)
        padded = torch.nn.functional.pad(self.images, (1, 1, 1, 1))
        kinds = set()
        for image, label in zip(images, labels, strict=True):
            candidates = {
                (row, column, flipped): crop.flip(2) if flipped else crop
                for row in range(3)
                for column in range(3)
                for flipped in (False, True)
                for crop in [padded[label][:, row : row + 3, column : column + 4]]
            }
            matching = [kind for kind, candidate in candidates.items() if torch.equal(candidate, image)]
            assert len(matching) == 1
            kinds.update(matching)
        assert len(kinds) > 4
        assert {flipped for *_, flipped in kinds} == {False, True}

    def test_every_shift_is_equally_likely(self):
        image = torch.zeros(9000, 1, 3, 3)
        image[:, :, 1, 1] = 1
        recipe = Recipe(batch_size=9000, max_shift=1)
        [(images, _)] = epoch_batches(image, torch.zeros(9000), recipe=recipe, epoch=1)
        # 1000 of 9000 expected at each place, standard deviation 30.
        assert ((images.sum((0, 1)) - 1000).abs() < 150).all()

    def test_epoch_and_seed_decide_and_nothing_else(self):
        before = torch.get_rng_state()
        first, again = (self.epoch(epoch=2, max_shift=1, flip=True) for _ in range(2))
        assert torch.equal(first[0], again[0])
        assert torch.equal(torch.get_rng_state(), before)
        for other in (
            self.epoch(epoch=1, max_shift=1, flip=True),
            self.epoch(epoch=2, max_shift=1, flip=True, seed=1),
        ):
            assert not torch.equal(first[0], other[0])


class TestEpoch:
    @pytest.fixture
    def split(self):
        return Split.from_data(open_split("train", 80), torch.device("cpu"))

    def test_one_step_is_sgd_with_weight_decay(self, split):
        recipe = Recipe(epochs=1, batch_size=80, learning_rate=0.1, warmup_epochs=0, weight_decay=0.01)
        net, naive = (build(TINY, seed=0).double() for _ in range(2))
        split = Split(split.pixels.double(), split.labels, split.normalisation)
        assert train_epoch(net, make_optimizer(net, recipe), split, recipe=recipe, epoch=1, report=lambda done: None)
        # One batch holds everything, so that its order changes nothing but rounding.
        loss = torch.nn.functional.cross_entropy(naive(split.normalisation.apply(split.pixels)), split.labels)
        gradients = torch.autograd.grad(loss, list(naive.parameters()))
        for parameter, start, gradient in zip(net.parameters(), naive.parameters(), gradients, strict=True):
            expected = start - 0.1 * (gradient + 0.01 * start)
            # cross_entropy is computed in float32.
            torch.testing.assert_close(parameter, expected, rtol=1e-4, atol=1e-6)

    def test_clipping_bounds_the_step(self, split):
        recipe = Recipe(epochs=1, batch_size=80, learning_rate=1.0, warmup_epochs=0, weight_decay=0, clip=1e-3)
        net = build(TINY, seed=0)
        before = [parameter.detach().clone() for parameter in net.parameters()]
        train_epoch(net, make_optimizer(net, recipe), split, recipe=recipe, epoch=1, report=lambda done: None)
        steps = [(parameter - old).norm() for parameter, old in zip(net.parameters(), before, strict=True)]
        assert torch.stack(steps).norm().item() == pytest.approx(1e-3, rel=1e-2)

    def test_evaluation_against_a_whole_batch(self):
        split = Split.from_data(open_split("train", 300), torch.device("cpu"))
        net = build(TINY, seed=0).train()
        loss, error = evaluate(net, split)
        assert not net.training
        logits = net(split.normalisation.apply(split.pixels))
        assert loss == pytest.approx(torch.nn.functional.cross_entropy(logits, split.labels).item(), rel=1e-5)
        assert error == int((logits.argmax(1) != split.labels).sum()) / 300

    def test_mixed_precision_trains_nearly_alike(self, split):
        losses = {}
        for precision in ("float32", "bfloat16"):
            recipe = Recipe(epochs=1, batch_size=20, learning_rate=0.05, warmup_epochs=0, precision=precision)
            net = build(TINY, seed=0)
            train_epoch(net, make_optimizer(net, recipe), split, recipe=recipe, epoch=1, report=lambda done: None)
            assert all(parameter.dtype == torch.float32 for parameter in net.parameters())
            losses[precision] = evaluate(net, split)[0]
        assert losses["bfloat16"] != losses["float32"]
        assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.1)

    def test_cudnn_is_restored(self, monkeypatch):
        cudnn = torch.backends.cudnn
        monkeypatch.setattr(cudnn, "benchmark", True)
        with deterministic_cudnn(torch.device("cuda")):
            assert (cudnn.deterministic, cudnn.benchmark) == (True, False)
        assert (cudnn.deterministic, cudnn.benchmark) == (False, True)


class TestResult:
    def test_log(self, reference):
        out, log = reference
        results.check(log)
        assert log.sizes == {"epoch": 3}
        assert log["epoch"].values.tolist() == [1, 2, 3]
        assert log.attrs["checkpoint"] == "net.pt"
        assert log.attrs["architecture"] == "resnet8"
        assert json.loads(log.attrs["settings"])["batch_size"] == 32
        assert results.open(out.with_name("net-training.nc")).identical(log)

    def test_checkpoint(self, reference):
        out, log = reference
        checkpoint = read(out)
        assert (checkpoint["format"], checkpoint["format_version"]) == ("resprobe", 1)
        assert (checkpoint["data"], checkpoint["epochs"]) == ("digits", 3)
        assert checkpoint["architecture"] == TINY.as_dict()
        assert checkpoint["recipe"] == RECIPE.as_dict()
        assert checkpoint["train_data"]["data_sha256"] == open_split("train").sha256
        normalisation = open_split("train").normalisation
        assert checkpoint["normalisation"] == {
            "name": normalisation.name,
            "mean": list(normalisation.mean),
            "std": list(normalisation.std),
        }
        for name in ("train_loss", "train_error", "test_loss", "test_error"):
            assert checkpoint[name] == float(log[name][-1])
        assert all(value.is_contiguous() for value in checkpoint["state_dict"].values())

    def test_the_checkpoint_has_the_error_that_it_claims(self, reference):
        checkpoint = read(reference[0])
        net = build(TINY).eval()
        net.load_state_dict(checkpoint["state_dict"])
        num_wrong = sum(int((net(x).argmax(1) != y).sum()) for x, y in open_split("test", 50))
        assert num_wrong / 50 == checkpoint["test_error"]

    def test_a_repetition_is_identical_and_leaves_global_state_alone(self, reference, tmp_path):
        torch.rand(3)
        before = torch.get_rng_state()
        log = train_tiny(tmp_path / "net.pt")
        assert torch.equal(torch.get_rng_state(), before)
        assert_same_training(tmp_path / "net.pt", log, reference)

    def test_progress(self, tmp_path):
        calls = []
        train_tiny(tmp_path / "net.pt", progress=lambda *call: calls.append(call))
        assert [call[:2] for call in calls] == [(done, 9) for done in range(1, 10)]
        assert calls[0][2] == "epoch 1/3"
        assert calls[-1][2].startswith("epoch 3/3, train loss ")

    @pytest.mark.parametrize(
        ("name", "recipe"),
        [
            ("resnet8", Recipe(epochs=6, batch_size=32, warmup_epochs=1, schedule="cosine")),
            ("preplain8", Recipe(epochs=6, batch_size=32, warmup_epochs=1)),
        ],
    )
    def test_it_learns(self, name, recipe, tmp_path):
        architecture = parse_architecture(name, width=8, in_channels=1)
        log = train_tiny(tmp_path / "net.pt", architecture=architecture, recipe=recipe, num_images=320)
        assert log["train_loss"][-1] < 0.7
        assert log["train_error"][-1] < 0.25

    def test_110_layers_without_normalisation_learn(self, tmp_path):
        architecture = parse_architecture("resnet110", width=8, in_channels=1, norm="none")
        recipe = default_recipe(architecture, "digits", epochs=2, batch_size=16, warmup_epochs=0, schedule="cosine")
        log = train_tiny(tmp_path / "net.pt", architecture=architecture, recipe=recipe, num_images=320)
        # Guessing costs log(10) = 2.30 nat.
        assert log["train_loss"][-1] < 2.2
        assert log["train_loss"][-1] < log["train_loss"][0]


def interrupt_at_batch(batch: int):
    def progress(done: int, total: int, message: str) -> None:
        if done == batch:
            raise KeyboardInterrupt

    return progress


class TestResuming:
    @pytest.mark.parametrize("batch", [1, 3, 5, 9])
    def test_after_an_interruption_in_any_epoch(self, batch, reference, tmp_path):
        out = tmp_path / "net.pt"
        with pytest.raises(KeyboardInterrupt):
            train_tiny(out, progress=interrupt_at_batch(batch))
        assert not out.exists()
        assert out.with_name("net.pt.partial").exists() == (batch > 3)
        assert_same_training(out, train_tiny(out), reference)

    def test_finished_epochs_are_not_repeated(self, tmp_path):
        out, calls = tmp_path / "net.pt", []
        with pytest.raises(KeyboardInterrupt):
            train_tiny(out, progress=interrupt_at_batch(8))
        train_tiny(out, progress=lambda done, total, message: calls.append(done))
        assert calls == [7, 8, 9]

    def test_after_an_interruption_while_the_state_is_written(self, reference, tmp_path, monkeypatch):
        out, num_saved = tmp_path / "net.pt", 0
        save = torch.save

        def broken_save(state, path):
            nonlocal num_saved
            num_saved += 1
            if num_saved == 2:
                Path(path).write_bytes(b"half a file")
                raise KeyboardInterrupt
            save(state, path)

        monkeypatch.setattr(resprobe.training.resuming.torch, "save", broken_save)
        with pytest.raises(KeyboardInterrupt):
            train_tiny(out)
        monkeypatch.undo()
        assert len(read(out.with_name("net.pt.partial"))["log"]["train_loss"]) == 1
        assert_same_training(out, train_tiny(out), reference)

    @pytest.mark.parametrize("function", ["log_dataset", "whole_file"])
    def test_after_an_interruption_at_the_end(self, function, reference, tmp_path, monkeypatch):
        def interrupt(*args, **options):
            raise KeyboardInterrupt

        out = tmp_path / "net.pt"
        monkeypatch.setattr(resprobe.training.runs, function, interrupt)
        with pytest.raises(KeyboardInterrupt):
            train_tiny(out)
        monkeypatch.undo()
        assert not out.exists()
        assert out.with_name("net-training.nc").exists() == (function == "whole_file")
        assert_same_training(out, train_tiny(out), reference)

    def test_after_a_kill_within_an_epoch(self, reference, tmp_path):
        out = tmp_path / "net.pt"
        code = (
            "import os, signal, sys; from pathlib import Path; import test_training\n"
            "def kill(done, total, message): done == 5 and os.kill(os.getpid(), signal.SIGKILL)\n"
            "test_training.train_tiny(Path(sys.argv[1]), progress=kill)\n"
        )
        paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
        killed = subprocess.run(
            [sys.executable, "-c", code, str(out)], env={**os.environ, "PYTHONPATH": paths}, check=False
        )
        assert killed.returncode == -signal.SIGKILL
        assert not out.exists()
        assert_same_training(out, train_tiny(out), reference)

    @pytest.mark.parametrize(
        ("options", "difference"),
        [
            ({"recipe": Recipe(epochs=3, batch_size=16)}, "recipe.batch_size 32 instead of 16"),
            (
                {"architecture": parse_architecture("plain8", width=2, in_channels=1)},
                "architecture.residual True",
            ),
            ({"num_images": 64}, "train_data.num_images 96 instead of 64"),
        ],
    )
    def test_the_state_of_another_training(self, options, difference, tmp_path):
        out = tmp_path / "net.pt"
        with pytest.raises(KeyboardInterrupt):
            train_tiny(out, progress=interrupt_at_batch(5))
        with pytest.raises(ResprobeError, match=f"net.pt.partial: expected the same training, got .*{difference}"):
            train_tiny(out, **options)
        log = train_tiny(out, overwrite=True, **options)
        assert log.sizes["epoch"] == 3
        assert not out.with_name("net.pt.partial").exists()

    def test_overwriting_can_be_resumed_too(self, reference, tmp_path):
        out, calls = tmp_path / "net.pt", []
        train_tiny(out, recipe=Recipe(epochs=1, batch_size=32))
        with pytest.raises(KeyboardInterrupt):
            train_tiny(out, overwrite=True, progress=interrupt_at_batch(5))
        assert read(out)["epochs"] == 1
        log = train_tiny(out, overwrite=True, progress=lambda done, total, message: calls.append(done))
        assert calls[0] == 4
        assert_same_training(out, log, reference)


class TestStart:
    start = build(TINY, seed=11).state_dict()

    def test_it_starts_there_and_resumes_to_the_bit(self, reference, tmp_path):
        whole, out = tmp_path / "whole.pt", tmp_path / "net.pt"
        before = {name: tensor.clone() for name, tensor in self.start.items()}
        log = train_tiny(whole, start=self.start)
        assert all(torch.equal(self.start[name], tensor) for name, tensor in before.items())
        assert not log.train_loss.equals(reference[1].train_loss)
        with pytest.raises(KeyboardInterrupt):
            train_tiny(out, start=self.start, progress=interrupt_at_batch(5))
        again = train_tiny(out, start=self.start)
        assert again.train_loss.equals(log.train_loss)
        states = [read(path)["state_dict"] for path in (whole, out)]
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
        assert json.loads(log.attrs["settings"])["start_sha256"] == read(whole)["start"]["sha256"]

    def test_the_weights_of_the_seed_as_start_change_nothing(self, reference, tmp_path):
        log = train_tiny(tmp_path / "net.pt", start=build(TINY, seed=RECIPE.seed).state_dict())
        assert log.train_loss.equals(reference[1].train_loss)

    def test_another_start_is_another_training(self, reference, tmp_path):
        out, _ = reference
        with pytest.raises(ResprobeError, match=r"net.pt: expected the same training, got start.sha256 None instead"):
            train_tiny(out, start=self.start)
        with pytest.raises(KeyboardInterrupt):
            train_tiny(tmp_path / "net.pt", start=self.start, progress=interrupt_at_batch(5))
        with pytest.raises(ResprobeError, match=r"got start.sha256 '[0-9a-f]+' instead of None"):
            train_tiny(tmp_path / "net.pt")

    def test_tensors_of_another_network(self, tmp_path):
        other = build(parse_architecture("resnet8", width=4, in_channels=1), seed=0).state_dict()
        with pytest.raises(ResprobeError, match=r"start of resnet8: conv1.weight: expected shape \(2, 1, 3, 3\), got"):
            train_tiny(tmp_path / "net.pt", start=other)
        deeper = build(parse_architecture("resnet14", width=2, in_channels=1), seed=0).state_dict()
        with pytest.raises(ResprobeError, match=r"layer1.1.conv1.weight: expected no such tensor, got shape"):
            train_tiny(tmp_path / "net.pt", start=deeper)


class TestFinished:
    def test_it_is_not_repeated(self, reference):
        out, log = reference
        before = out.read_bytes(), out.stat().st_mtime_ns
        assert train_tiny(out, progress=interrupt_at_batch(1)).identical(log)
        assert (out.read_bytes(), out.stat().st_mtime_ns) == before

    def test_another_training_is_not_overwritten(self, reference):
        out, _ = reference
        before = out.read_bytes()
        with pytest.raises(ResprobeError, match=r"net.pt: expected the same training, got recipe.seed 5 instead of 6"):
            train_tiny(out, recipe=default_recipe(TINY, "digits", **{**RECIPE.as_dict(), "seed": 6}))
        assert out.read_bytes() == before

    def test_a_foreign_file_is_not_overwritten(self, tmp_path):
        out = tmp_path / "net.pt"
        out.write_text("notes")
        with pytest.raises(ResprobeError, match="net.pt: expected nothing there or a file of format resprobe"):
            train_tiny(out)
        assert out.read_text() == "notes"
        torch.save({"format": "other"}, out)
        with pytest.raises(ResprobeError, match="got something else; choose another --out"):
            train_tiny(out)

    @pytest.mark.parametrize("missing", ["net.pt", "net-training.nc"])
    def test_half_of_the_files(self, missing, reference, tmp_path):
        for name in {"net.pt", "net-training.nc"} - {missing}:
            (tmp_path / name).write_bytes(reference[0].with_name(name).read_bytes())
        with pytest.raises(ResprobeError, match="net-training.nc: expected .*; .* --overwrite"):
            train_tiny(tmp_path / "net.pt")
        assert_same_training(tmp_path / "net.pt", train_tiny(tmp_path / "net.pt", overwrite=True), reference)

    def test_the_log_of_another_checkpoint(self, reference, tmp_path):
        for name in ("net.pt", "net-training.nc"):
            (tmp_path / name).write_bytes(reference[0].with_name(name).read_bytes())
        torch.save(read(tmp_path / "net.pt") | {"note": "edited"}, tmp_path / "net.pt")
        with pytest.raises(ResprobeError, match="expected the log of net.pt, got none or that of another"):
            train_tiny(tmp_path / "net.pt")


class TestRefusals:
    def test_diverged(self, tmp_path):
        out = tmp_path / "net.pt"
        recipe = Recipe(epochs=4, batch_size=32, learning_rate=1e20, warmup_epochs=0)
        with pytest.raises(ResprobeError, match=r"NaN or infinity in epoch 1; try .* --learning-rate .* --clip 1"):
            train_tiny(out, architecture=parse_architecture("plain8", in_channels=1, norm="none"), recipe=recipe)
        assert list(tmp_path.iterdir()) == []

    def test_diverged_later_keeps_the_last_good_epoch(self, tmp_path, monkeypatch):
        out = tmp_path / "net.pt"
        measure = resprobe.training.runs.measure_epoch

        def measure_and_fail(*args, epoch, **options):
            return measure(*args, epoch=epoch, **options) | ({"test_loss": float("inf")} if epoch == 3 else {})

        monkeypatch.setattr(resprobe.training.runs, "measure_epoch", measure_and_fail)
        with pytest.raises(ResprobeError, match="in epoch 3; .*the state after epoch 2 is in .*net.pt.partial"):
            train_tiny(out)
        assert len(read(out.with_name("net.pt.partial"))["log"]["test_loss"]) == 2

    def test_missing_folder(self, tmp_path):
        with pytest.raises(ResprobeError, match="expected a folder that can be written, got No such file"):
            train_tiny(tmp_path / "missing" / "net.pt")

    def test_a_folder_as_file(self, tmp_path):
        with pytest.raises(ResprobeError, match="expected a file to write, got a folder"):
            train_tiny(tmp_path)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"in_channels": 3}, "resnet8 on digits: expected 3 channels, got 1; build .* in_channels=1"),
            ({"num_classes": 7}, "resnet8 on digits: expected 7 classes, got 10; build .* num_classes=10"),
        ],
    )
    def test_data_that_do_not_fit(self, options, message, tmp_path):
        architecture = parse_architecture("resnet8", **{"in_channels": 1, **options})
        with pytest.raises(ResprobeError, match=message):
            train_tiny(tmp_path / "net.pt", architecture=architecture)

    def test_labels_without_an_output(self, tmp_path):
        np.savez(tmp_path / "data.npz", x=np.zeros((20, 8, 8), np.uint8), y=np.arange(20) % 5)
        data = open_data(f"npz:{tmp_path / 'data.npz'}", normalisation="none")
        architecture = parse_architecture("resnet8", in_channels=1, num_classes=4)
        with pytest.raises(ResprobeError, match="expected labels below its 4 classes, got 4; build"):
            train(architecture, data, data, recipe=RECIPE, out=tmp_path / "net.pt")

    def test_normalisations_that_differ(self, tmp_path):
        train_data, test_data = open_split("train"), open_split("test", normalisation="none")
        with pytest.raises(ResprobeError, match="test images: expected the normalisation digits .*, got none"):
            train(TINY, train_data, test_data, recipe=RECIPE, out=tmp_path / "net.pt")

    def test_a_device_that_is_not_there(self, tmp_path):
        with pytest.raises(ResprobeError, match="device: expected one that is there, got 'cuda:99'"):
            train_tiny(tmp_path / "net.pt", device="cuda:99")


@pytest.mark.gpu
class TestCuda:
    def test_resuming_is_exact(self, tmp_path):
        whole, interrupted = tmp_path / "whole" / "net.pt", tmp_path / "interrupted" / "net.pt"
        for out in (whole, interrupted):
            out.parent.mkdir()
        log = train_tiny(whole, device="cuda")
        with pytest.raises(KeyboardInterrupt):
            train_tiny(interrupted, device="cuda", progress=interrupt_at_batch(5))
        assert_same_training(interrupted, train_tiny(interrupted, device="cuda"), (whole, log))
