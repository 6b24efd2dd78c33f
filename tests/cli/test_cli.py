import importlib
import re
import shutil
import signal
import subprocess
import sys
import time

import matplotlib.image
import numpy as np
import pytest
import torch

from resprobe import results
from resprobe.cli import app
from resprobe.errors import ResprobeError
from resprobe.networks import build, parse_architecture


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A checkpoint of each kind."""
    made = tmp_path_factory.mktemp("checkpoints")
    for name in ("resnet8", "plain8"):
        architecture = parse_architecture(name, width=4, in_channels=1)
        content = {
            "format": "resprobe",
            "format_version": 1,
            "state_dict": build(architecture, seed=0).state_dict(),
            "architecture": architecture.as_dict(),
            "data": "digits",
            "normalisation": {"name": "digits", "mean": [0.3052], "std": [0.376]},
        }
        torch.save(content, made / f"{name}.pt")
    return made


@pytest.fixture
def folder(checkpoints, tmp_path, monkeypatch):
    """A working folder with the checkpoints under checkpoints/."""
    shutil.copytree(checkpoints, tmp_path / "checkpoints")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def resprobe(folder, command_line):
    """Run the command line in the folder; gives exit code, stdout, stderr."""
    return command_line


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


LESION = ("lesion", "--ckpt", "resnet8.pt", "--num-images", "30")


class TestLesion:
    def test_table_summary_and_file(self, resprobe):
        code, out, err = resprobe(*LESION)
        assert code == 0
        assert "resnet8.pt (resnet8) on digits, test images, 30 of them" in out
        assert re.search(r"layer2\.0 +2 +\d+\.\d % +[+-]\d+\.\d +\d+\.\d to \d+\.\d %", out)
        assert re.search(r"baseline \d+\.\d %, median \d+\.\d % over 3 deletions, worst \d+\.\d % \(layer\d\.0\)", out)
        assert all(len(line) <= 80 for line in out.splitlines()[1:-1])
        assert "saved results/lesion-resnet8.nc" in err
        dataset = results.open("results/lesion-resnet8.nc")
        assert dataset.sizes["unit"] == 3
        assert dataset.attrs["checkpoint"] == "resnet8.pt"
        assert dataset.attrs["num_images"] == 30

    def test_same_question_is_not_computed_again(self, resprobe, monkeypatch):
        _, first, _ = resprobe(*LESION)
        before = results.open("results/lesion-resnet8.nc")
        monkeypatch.setattr(
            "resprobe.probes.lesions.lesions.score", lambda *args, **options: pytest.fail("computed again")
        )
        code, second, err = resprobe(*LESION, "--batch-size", 7)
        assert (code, second) == (0, first)
        assert "holds this result already" in err
        assert results.open("results/lesion-resnet8.nc").identical(before)

    @pytest.mark.parametrize(
        "change",
        [["--num-images", 20], ["--precision", "float64"], ["--unit", "layer1.0"], ["--split", "train"]],
    )
    def test_another_question_is_refused_and_replaced_on_demand(self, resprobe, change):
        resprobe(*LESION)
        before = results.open("results/lesion-resnet8.nc")
        code, out, err = resprobe(*LESION, *change)
        assert (code, out) == (1, "")
        assert "expected the same result or no file" in err
        assert "--overwrite" in err
        assert results.open("results/lesion-resnet8.nc").identical(before)
        assert resprobe(*LESION, *change, "--overwrite")[0] == 0
        assert not results.open("results/lesion-resnet8.nc").identical(before)

    def test_several_checkpoints(self, resprobe, folder):
        code, out, _ = resprobe(*LESION, "--ckpt", "plain8.pt", "--out", "both", "--plot")
        assert code == 0
        assert "layer1.0.conv2" in out
        assert [name for name in files(folder) if name.startswith("both")] == [
            *("both/lesion-plain8.nc", "both/lesion-plain8.png"),
            *("both/lesion-resnet8.nc", "both/lesion-resnet8.png"),
        ]

    def test_quiet(self, resprobe):
        code, out, err = resprobe(*LESION, "--quiet")
        assert (code, err) == (0, "")
        assert "baseline" in out

    def test_npz_with_normalisation(self, resprobe, folder):
        x = np.random.default_rng(0).integers(0, 256, (6, 8, 8), dtype=np.uint8)
        np.savez(folder / "images.npz", x=x, y=np.arange(6))
        code, _, _ = resprobe("lesion", "--ckpt", "resnet8.pt", "--data", "npz:images.npz", "--normalise", ".5/.25")
        assert code == 0
        attrs = results.open("results/lesion-resnet8.nc").attrs
        assert (attrs["data"], attrs["normalisation"]) == ("npz:images.npz", "custom (0.5/0.25)")

    def test_foreign_checkpoint(self, resprobe, folder):
        torch.save(build(parse_architecture("resnet8", width=4, in_channels=1)).state_dict(), folder / "bare.pth")
        code, _, err = resprobe("lesion", "--ckpt", "bare.pth", "--arch", "resnet8")
        assert code == 1
        assert "give --data and --normalise" in err
        assert resprobe("lesion", "--ckpt", "bare.pth", "--arch", "resnet8", "--data", "digits")[0] == 0


class TestOtherCommands:
    def test_lesion_curve(self, resprobe):
        code, out, _ = resprobe("lesion-curve", "--ckpt", "resnet8.pt", "--num-deleted", "1:3:2", "--draws", 2)
        assert code == 0
        assert "2 random sets of units per row" in out
        assert results.open("results/lesion-curve-resnet8.nc").num_deleted.values.tolist() == [1, 3]

    def test_reorder(self, resprobe):
        code, out, _ = resprobe("reorder", "--ckpt", "plain8.pt", "--num-swaps", "1,4", "--draws", 2, "--by", "layer")
        assert code == 0
        assert "Kendall tau" in out
        assert results.open("results/reorder-plain8.nc").num_swaps.values.tolist() == [1, 4]

    def test_paths(self, resprobe):
        code, out, err = resprobe("paths", "--ckpt", "resnet8.pt", "--num-images", "20", "--estimator", "signs")
        assert code == 0
        assert "Gradient by path length: resnet8.pt (resnet8) on digits" in out
        assert "saved results/paths-resnet8.nc" in err
        dataset = results.open("results/paths-resnet8.nc")
        assert dataset.num_paths.values.tolist() == [1, 3, 3, 1]
        assert "path_grad_rms" in dataset

    def test_smoothness(self, resprobe):
        arguments = ("smoothness", "--ckpt", "resnet8.pt", "--batch-size", 10, "--num-batches", 2, "--steps", "0.1,0.2")
        code, out, err = resprobe(*arguments)
        assert code == 0
        assert "Smoothness of the loss: resnet8.pt (resnet8) on digits, test images, 20 of them" in out
        assert "medians over 2 batches of 10 images; steps 0.1 to 0.2, rule gradient" in out
        assert "saved results/smoothness-resnet8.nc" in err
        dataset = results.open("results/smoothness-resnet8.nc")
        assert dataset.bn_mode.values.tolist() == ["running", "batch", "folded"]
        code, again, err = resprobe(*arguments)
        assert (code, again) == (0, out)
        assert "holds this result already" in err
        # the size of the batches is part of the question here
        code, _, err = resprobe(*arguments, "--batch-size", 5)
        assert code == 1
        assert "expected the same result or no file" in err

    def test_curvature(self, resprobe):
        arguments = ("curvature", "--ckpt", "resnet8.pt", "--num-images", 10, "--num-probes", 2, "--num-lanczos", 2)
        code, out, err = resprobe(*arguments, "--num-eigenvalues", 1, "--tol", 0.5, "--bn-mode", "folded")
        assert code == 0
        assert [line.split()[0] for line in out.splitlines()[1:4]] == ["rank", "1", "lowest"]
        assert "saved results/curvature-resnet8.nc" in err
        dataset = results.open("results/curvature-resnet8.nc")
        assert dataset.attrs["bn_mode"] == "folded"
        assert dataset.sizes["rank"] == 1

    def test_smoothness_of_several(self, resprobe, folder):
        arguments = ("smoothness", "--ckpt", "resnet8.pt", "--ckpt", "plain8.pt", "--batch-size", 10)
        options = ("--num-batches", 1, "--step-rule", "relative", "--bn-mode", "batch", "--plot")
        code, out, _ = resprobe(*arguments, *options)
        assert code == 0
        assert "resnet8.pt, plain8.pt (resnet8, plain8)" in out
        dataset = results.open("results/smoothness-resnet8-plain8.nc")
        assert dict(dataset.sizes) == {"checkpoint": 2, "bn_mode": 1, "batch": 1, "step": 6}
        assert (folder / "results" / "smoothness-resnet8-plain8.png").exists()
        assert "holds this result already" in resprobe(*arguments, *options)[2]
        assert resprobe(*arguments, *options, "--out", "here.nc")[0] == 0
        assert (folder / "here.nc").exists()

    def test_surface(self, resprobe, folder):
        arguments = ("surface", "--ckpt", "resnet8.pt", "--num-images", 20, "--points", 5)
        code, out, err = resprobe(*arguments, "--plot")
        assert code == 0
        assert "Loss surface: resnet8.pt (resnet8) on digits, test images, 20 of them" in out
        assert "5 random directions; BN mode running" in out
        assert all(len(line) <= 80 for line in out.splitlines()[1:])
        assert {"results/surface-resnet8.nc", "results/surface-resnet8.png"} <= set(files(folder))
        assert dict(results.open("results/surface-resnet8.nc").sizes) == {"draw": 5, "direction_x": 5}
        code, again, err = resprobe(*arguments)
        assert (code, again) == (0, out)
        assert "holds this result already" in err
        # the defaults in words
        code, again, err = resprobe(*arguments, "--draws", 5, "--bn-mode", "running", "--overwrite")
        assert (code, again) == (0, out)
        assert "holds this result already" in resprobe(*arguments)[2]
        assert "holds this result already" in resprobe(*arguments, "--draws", 5, "--bn-mode", "running")[2]
        (folder / "folder.nc").mkdir()
        assert resprobe(*arguments, "--out", "folder.nc")[0] == 0
        assert (folder / "folder.nc/surface-resnet8.nc").exists()
        # rounding depends on the size of the batches
        for change in (["--range", 2], ["--dims", 2], ["--seed", 1], ["--batch-size", 10]):
            code, _, err = resprobe(*arguments, *change)
            assert (code, "--overwrite" in err) == (1, True)
        assert resprobe(*arguments, "--dims", 2, "--overwrite", "--plot")[0] == 0
        assert dict(results.open("results/surface-resnet8.nc").sizes) == {"direction_x": 5, "direction_y": 5}

    def test_surface_goes_on(self, resprobe, folder, monkeypatch):
        arguments = ("surface", "--ckpt", "resnet8.pt", "--num-images", 20, "--points", 3, "--dims", 2)
        resprobe(*arguments, "--out", "whole.nc")
        from resprobe.probes.landscape.moving import MovingNetwork

        measure = MovingNetwork.measure
        calls = []

        def interrupted(self, *arguments):
            calls.append(1)
            if len(calls) == 6:
                raise KeyboardInterrupt
            return measure(self, *arguments)

        with monkeypatch.context() as patched:
            patched.setattr(MovingNetwork, "measure", interrupted)
            code, out, err = resprobe(*arguments)
        assert (code, out) == (130, "")
        kept = "results/surface-resnet8.nc keeps 4 of 9 points; the same command goes on with it"
        assert err.splitlines() == [kept, "resprobe: error: interrupted; no file is half-written"]
        assert int(results.open("results/surface-resnet8.nc").done.sum()) == 4
        assert resprobe("plot", "results/surface-resnet8.nc")[0] == 0
        code, _, err = resprobe(*arguments, "--seed", 1)
        assert code == 1
        assert "expected the same result or no file" in err
        calls.clear()
        with monkeypatch.context() as patched:
            patched.setattr(MovingNetwork, "measure", interrupted)
            err = resprobe(*arguments, "--out", "other.nc", "--overwrite")[2]
        assert "other.nc keeps 4 of 9 points; the same command without --overwrite goes on with it" in err
        calls.clear()
        monkeypatch.setattr(MovingNetwork, "measure", lambda *given: calls.append(1) or measure(*given))
        code, _, err = resprobe(*arguments)
        assert code == 0
        assert "results/surface-resnet8.nc holds 4 of 9 points; going on with it" in err
        assert len(calls) == 1 + 5
        assert results.open("results/surface-resnet8.nc").equals(results.open("whole.nc"))

    def test_norm_lesion(self, resprobe):
        code, out, err = resprobe("norm-lesion", "--ckpt", "resnet8.pt", "--num-images", 20, "--replacement", "batch")
        assert code == 0
        assert "Error after batch normalisations were replaced (batch): resnet8.pt" in out
        assert "saved results/norm-lesion-resnet8.nc" in err
        assert results.open("results/norm-lesion-resnet8.nc").sizes["layer"] == 7

    def test_warning_is_a_line(self, resprobe, monkeypatch):
        from resprobe.probes.paths import measuring as path_measuring

        whole = path_measuring.Tape

        def small(segments, images, labels, row):
            if len(images) > 15:
                raise torch.OutOfMemoryError
            return whole(segments, images, labels, row)

        monkeypatch.setattr(path_measuring, "Tape", small)
        code, _, err = resprobe("paths", "--ckpt", "resnet8.pt", "--num-images", "20")
        assert code == 0
        assert "cpu has no room for 20 images at a time; going on with 10\n" in err

    def test_no_room_for_a_batch(self, resprobe, monkeypatch):
        def full(*args, **options):
            raise torch.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr(importlib.import_module("resprobe.probes.gradients.gradients"), "measure", full)
        code, _, err = resprobe("gradients", "--ckpt", "resnet8.pt", "--num-images", "20", "--quiet")
        assert code == 1
        assert err.startswith("resprobe: error: memory: expected room for a batch on the device, got none")

    def test_plot(self, resprobe, folder):
        resprobe(*LESION)
        code, _, err = resprobe("plot", "results/lesion-resnet8.nc", "--out", "figure.svg")
        assert (code, err) == (0, "saved figure.svg\n")
        assert (folder / "figure.svg").read_text().startswith("<?xml")

    def test_train_and_use(self, resprobe, folder):
        arguments = (
            "train",
            "--arch",
            "resnet8",
            "--data",
            "digits",
            "--epochs",
            1,
            "--width",
            4,
            "--out",
            "new.pt",
        )
        code, out, err = resprobe(*arguments, "--plot")
        assert code == 0
        assert "after 1 epochs: train loss" in out
        assert "saved new.pt and its log new-training.nc" in err
        assert {"new.pt", "new-training.nc", "new-training.png"} <= set(files(folder))
        assert resprobe(*arguments)[1] == out
        code, _, err = resprobe(*arguments, "--seed", 1)
        assert code == 1
        assert "recipe.seed 0 instead of 1" in err
        assert resprobe("lesion", "--ckpt", "new.pt")[0] == 0


class TestGradients:
    def test_checkpoint(self, resprobe, folder):
        options = ("gradients", "--ckpt", "resnet8.pt", "--num-images", 30, "--batch-size", 10, "--noise")
        code, out, err = resprobe(*options, "--plot")
        assert code == 0
        assert "resnet8.pt (resnet8) on digits, test images, 30 of them" in out
        assert "BN mode running" in out
        assert {"results/gradients-resnet8.nc", "results/gradients-resnet8.png"} <= set(files(folder))
        dataset = results.open("results/gradients-resnet8.nc")
        assert np.isfinite(dataset.weight_grad_norm_sem).all()
        assert "holds this result already" in resprobe(*options)[2]
        # the size of the batches is a part of the question
        code, _, err = resprobe(*options, "--batch-size", 15)
        assert (code, "--overwrite" in err) == (1, True)

    def test_batch_statistics(self, resprobe):
        code, out, _ = resprobe("gradients", "--ckpt", "resnet8.pt", "--bn-mode", "batch")
        assert code == 0
        assert "BN mode batch" in out
        assert results.open("results/gradients-resnet8.nc").attrs["bn_mode"] == "batch"

    @pytest.mark.parametrize("init", ["he", "xavier", "lecun", "orthogonal", "lsuv"])
    def test_untrained(self, resprobe, folder, init):
        options = ("gradients", "--arch", "plain8", "--num-images", 30, "--init", init, "--width", 4, "--seed", 1)
        code, out, err = resprobe(*options)
        assert code == 0
        assert f": plain8 untrained, {init}, width 4, seed 1 on digits" in out
        name = f"results/gradients-plain8-{init}-width4-seed1.nc"
        dataset = results.open(name)
        assert dataset.attrs["bn_mode"] == "batch"
        assert dataset.attrs["checkpoint"] == ""
        assert "holds this result already" in resprobe(*options)[2]
        code, _, err = resprobe(*options[:-1], 2, "--out", name)
        assert (code, "--overwrite" in err) == (1, True)

    def test_untrained_without_normalisation_on_other_data(self, resprobe, folder):
        images = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
        for index, image in enumerate(images):
            (folder / "images" / str(index % 3)).mkdir(parents=True, exist_ok=True)
            matplotlib.image.imsave(folder / "images" / str(index % 3) / f"{index}.png", image)
        code, _, err = resprobe(
            *("gradients", "--arch", "resnet8", "--norm", "none", "--shortcut", "projection"),
            *("--data", "folder:images", "--normalise", "imagenet", "--image-size", 8),
        )
        assert code == 0, err
        dataset = results.open("results/gradients-resnet8-he-nonorm-projection.nc")
        assert dataset.attrs["bn_mode"] == "running"
        assert '"in_channels": {"how": "read", "value": 3}' in dataset.attrs["facts"]
        assert '"num_classes": {"how": "read", "value": 3}' in dataset.attrs["facts"]

    def test_responses(self, resprobe, folder):
        code, out, _ = resprobe("responses", "--ckpt", "resnet8.pt", "--num-images", 30, "--plot")
        assert code == 0
        assert "7 layers, median std" in out
        assert {"results/responses-resnet8.nc", "results/responses-resnet8.png"} <= set(files(folder))


BAD_INPUT = {
    "gradients in bfloat16": (
        ["gradients", "--ckpt", "resnet8.pt", "--precision", "bfloat16"],
        "expected float32 or float64 for this analysis",
    ),
    "one image in batch mode": (
        ["gradients", "--ckpt", "resnet8.pt", "--bn-mode", "batch", "--num-images", "1"],
        "expected 2 images or more",
    ),
    "unknown initialisation": (["gradients", "--arch", "plain8", "--init", "zeros"], "init: expected one of he"),
    "untrained depth that does not exist": (["gradients", "--arch", "plain9"], "expected 6n + 2 layers, got 9"),
    "untrained state": (["gradients", "--arch", "plain8", "--state", "ema"], "state: expected none without --ckpt"),
    "untrained on data of unknown classes": (
        ["gradients", "--arch", "plain8", "--data", "npz:labels.npz", "--normalise", ".5/.25"],
        "expected data that say how many classes",
    ),
    "no such file": (
        ["lesion", "--ckpt", "absent.pt"],
        "absent.pt: expected a checkpoint file, got nothing at",
    ),
    "not a checkpoint": (["lesion", "--ckpt", "text.pt"], "text.pt: expected a checkpoint"),
    "wrong architecture": (
        [*LESION, "--arch", "resnet14"],
        "layer1.1.conv1.weight: expected shape (4, 4, 3, 3)",
    ),
    "unknown architecture": ([*LESION, "--arch", "vgg16"], "architecture: expected one of resnetN"),
    "wrong channels": ([*LESION[:3], "--data", "npz:rgb.npz", "--normalise", "none"], "expected 1 channels"),
    "labels out of range": (
        [*LESION[:3], "--data", "npz:labels.npz"],
        "the model's classes, got 12 at image 1",
    ),
    "unknown dataset": ([*LESION, "--data", "digts"], "got 'digts'; did you mean digits?"),
    "unknown unit": (
        [*LESION, "--unit", "layer1.7"],
        "unit: expected one of layer1.0, layer2.0, layer3.0, got",
    ),
    "unknown by": (
        ["lesion", "--ckpt", "plain8.pt", "--by", "head"],
        "by: expected layer or block, got 'head'",
    ),
    "unknown precision": ([*LESION, "--precision", "half"], "precision: expected one of float32"),
    "unknown device": ([*LESION, "--device", "tpu"], "device: expected one of auto, cpu"),
    "device that is not there": ([*LESION, "--device", "cuda:99"], "expected a device of this machine"),
    "unknown normalisation": ([*LESION, "--normalise", "imagnet"], "did you mean imagenet?"),
    "unknown split": ([*LESION, "--split", "dev"], "split"),
    "too many images": (
        ["lesion", "--ckpt", "resnet8.pt", "--num-images", "9999"],
        "expected at most the 500",
    ),
    "weights not finite": (
        ["lesion", "--ckpt", "nan.pt"],
        "expected finite weights, got NaN or infinity in conv1",
    ),
    "loss not finite": (
        ["lesion", "--ckpt", "huge.pt"],
        "loss of the intact model: expected finite numbers, got",
    ),
    "sizes out of range": (
        ["lesion-curve", "--ckpt", "resnet8.pt", "--num-deleted", "1:9"],
        "from 0 to 3, got",
    ),
    "sizes that are none": (["reorder", "--ckpt", "resnet8.pt", "--num-swaps", "few"], "FIRST:LAST"),
    "steps that are none": (["smoothness", "--ckpt", "resnet8.pt", "--steps", "few"], "steps: expected numbers"),
    "BN mode that a net lacks": (
        ["smoothness", "--ckpt", "resnet8.pt", "--bn-mode", "none"],
        "bn_modes: expected some of running, batch, folded for ResidualNetwork, got none",
    ),
    "a batch of one": (["smoothness", "--ckpt", "resnet8.pt", "--batch-size", "1"], "batch: expected 2 images or more"),
    "surface of three dimensions": (["surface", "--ckpt", "resnet8.pt", "--dims", "3"], "dims: expected 1 or 2, got 3"),
    "surface without end": (["surface", "--ckpt", "resnet8.pt", "--range", "inf"], "radius: expected a number above 0"),
    "a tolerance that is none": (
        ["curvature", "--ckpt", "resnet8.pt", "--tol", "nan"],
        "tol: expected a number between",
    ),
    "unknown directions": (
        ["surface", "--ckpt", "resnet8.pt", "--directions", "up"],
        "directions: expected random, hessian, got 'up'",
    ),
    "BN mode of a surface": (
        ["surface", "--ckpt", "resnet8.pt", "--bn-mode", "none"],
        "bn_mode: expected one of running, batch, folded",
    ),
    "checkpoints for other images": (
        ["smoothness", "--ckpt", "resnet8.pt", "--ckpt", "other.pt"],
        "expected checkpoints for the same images, got normalisation digits",
    ),
    "the same checkpoint twice": (
        ["smoothness", "--ckpt", "resnet8.pt", "--ckpt", "resnet8.pt"],
        "expected checkpoints with different names",
    ),
    "unknown replacement": (
        ["norm-lesion", "--ckpt", "resnet8.pt", "--replacement", "nothing"],
        "replacement: expected affine, batch, recomputed, got 'nothing'",
    ),
    "output folder is a file": ([*LESION, "--out", "text.pt/l.nc"], "expected to write a file there, got"),
    "output is a folder": (
        [*LESION, "--ckpt", "plain8.pt", "--out", "o.nc"],
        "expected a folder for 2 results",
    ),
    "output is a figure": ([*LESION, "--plot", "--out", "o.png"], "expected a result such as o.nc, got o.png"),
    "output with a name too long": ([*LESION, "--out", "o" * 300], "got File name too long"),
    "negative seed": (
        ["reorder", "--ckpt", "resnet8.pt", "--num-swaps", "1", "--seed", "-1"],
        "seed: expected a whole number from 0, got -1",
    ),
    "train with too large a seed": (
        ["train", "--arch", "resnet8", "--data", "digits", "--out", "new.pt", "--seed", str(2**64)],
        "seed: expected a number from 0",
    ),
    "train without test images": (
        ["train", "--arch", "resnet8", "--data", "npz:labels.npz", "--normalise", "none", "--out", "new.pt"],
        "resprobe train takes --test-data",
    ),
    "output is something else": ([*LESION, "--out", "text.pt"], "text.pt: expected a netCDF4 file"),
    "plot of no result": (["plot", "text.pt"], "text.pt: expected a netCDF4 file"),
    "dataset not on disk": ([*LESION, "--data", "mnist"], "--download"),
    "train a depth that does not exist": (
        ["train", "--arch", "resnet21", "--data", "digits", "--out", "new.pt"],
        "expected 6n + 2 layers, got 21",
    ),
}


@pytest.fixture(scope="module")
def bad_files(checkpoints, tmp_path_factory):
    """Files that the commands refuse."""
    made = tmp_path_factory.mktemp("bad")
    (made / "text.pt").write_text("these are words")
    np.savez(made / "rgb.npz", x=np.zeros((2, 8, 8, 3), np.uint8), y=np.zeros(2, int))
    np.savez(made / "labels.npz", x=np.zeros((2, 8, 8), np.uint8), y=np.array([0, 12]))
    content = torch.load(checkpoints / "resnet8.pt", weights_only=True)
    torch.save({**content, "normalisation": {"name": "other", "mean": [0.5], "std": [0.5]}}, made / "other.pt")
    content["state_dict"]["linear.weight"] = content["state_dict"]["linear.weight"] * 1e38 * 10
    content["state_dict"]["linear.weight"].clamp_(-3e38, 3e38)
    torch.save(content, made / "huge.pt")
    content["state_dict"]["conv1.weight"][0] = torch.nan
    torch.save(content, made / "nan.pt")
    return made


class TestErrors:
    @pytest.fixture(autouse=True)
    def with_bad_files(self, bad_files, folder):
        shutil.copytree(bad_files, folder, dirs_exist_ok=True)

    @pytest.mark.parametrize("case", BAD_INPUT)
    def test_one_line_exit_1_and_nothing_written(self, resprobe, folder, case):
        arguments, message = BAD_INPUT[case]
        before = {name: (folder / name).read_bytes() for name in files(folder)}
        code, out, err = resprobe(*arguments)
        assert (code, out) == (1, "")
        assert err.startswith("resprobe: error: ")
        assert message in err
        assert err.count("\n") == 1
        assert {name: (folder / name).read_bytes() for name in files(folder)} == before

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["lesion", "--ckpt", "resnet8.pt", "--frobnicate"], "No such option: --frobnicate"),
            (["lesion"], "Missing option '--ckpt'"),
            (["responses", "--arch", "resnet8"], "Missing option '--ckpt'"),
            (["gradients"], "Missing option '--ckpt', or '--arch' for an untrained net"),
            (["gradients", "--ckpt", "resnet8.pt", "--init", "he"], "Option '--init' is for an untrained net"),
            (["lesions"], "No such command 'lesions'"),
            (["lesion", "--ckpt", "resnet8.pt", "--batch-size", "many"], "Invalid value for '--batch-size'"),
        ],
    )
    def test_usage_errors_exit_2(self, resprobe, arguments, message):
        code, out, err = resprobe(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("resprobe: error: ")
        assert message in err
        assert err.count("\n") == 1

    def test_no_command_shows_the_help(self, resprobe):
        code, out, err = resprobe()
        assert (code, out) == (2, "")
        assert err.startswith("Usage: ")
        assert "\n  lesion " in err

    def test_debug_shows_the_traceback(self, folder, monkeypatch):
        monkeypatch.setattr(sys, "argv", ["resprobe", "lesion", "--ckpt", "absent.pt", "--debug"])
        with pytest.raises(ResprobeError, match="absent.pt"):
            app.main()

    def test_interruption_leaves_nothing(self, resprobe, folder, monkeypatch):
        def interrupt(*args, **options):
            raise KeyboardInterrupt

        monkeypatch.setattr("resprobe.lesion", interrupt)
        before = files(folder)
        code, out, err = resprobe(*LESION)
        assert (code, out) == (130, "")
        assert err == "resprobe: error: interrupted; no file is half-written\n"
        assert files(folder) == before


class TestProcess:
    @pytest.mark.parametrize("start", [["-m", "resprobe"], ["-c", "from resprobe.cli.app import main; main()"]])
    @pytest.mark.parametrize("command", [[], ["lesion"], ["gradients"], ["train"]])
    def test_help_does_not_import_torch(self, start, command):
        run = subprocess.run(
            [sys.executable, "-X", "importtime", *start, *command, "--help"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "Usage:" in run.stdout
        assert not re.search(r"\| +(torch|xarray|numpy)$", run.stderr, re.MULTILINE)

    def test_ctrl_c_during_a_run(self, folder):
        # started in the background of a shell, the tests would hand on that Ctrl-C is to be ignored
        start = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
        soon = "import resprobe.cli.progress; resprobe.cli.progress._SECONDS_BETWEEN_LINES = 0.1"
        script = f"{start}; {soon}; from resprobe.cli.app import main; main()"
        options = ["--num-deleted", "1:3", "--draws", "300", "--batch-size", "1"]
        with subprocess.Popen(
            [sys.executable, "-u", "-c", script, "lesion-curve", "--ckpt", "resnet8.pt", *options],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert " s left" in process.stderr.readline()
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=60)
            finally:
                process.kill()
        assert process.returncode == 130
        assert out == ""
        assert err == "resprobe: error: interrupted; no file is half-written\n"
        assert not (folder / "results").exists()

    def test_ctrl_c_during_a_surface(self, resprobe, folder):
        start = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
        script = f"{start}; from resprobe.cli.app import main; main()"
        arguments = ["surface", "--ckpt", "resnet8.pt", "--num-images", "20", "--dims", "2", "--points", "7"]
        # slowed down, and kept at every point, so that something is there to be interrupted
        slow = (
            "import time, resprobe.probes.surfaces.surfaces as s; s.SECONDS_BETWEEN_KEEPS = 0; "
            "m = s.MovingNetwork.measure; s.MovingNetwork.measure = lambda *given: time.sleep(0.1) or m(*given)"
        )
        with subprocess.Popen(
            [sys.executable, "-u", "-c", f"{slow}; {script}", *arguments], stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                deadline = time.monotonic() + 60
                while not (folder / "results/surface-resnet8.nc").exists() and time.monotonic() < deadline:
                    time.sleep(0.02)
                process.send_signal(signal.SIGINT)
                _, err = process.communicate(timeout=60)
            finally:
                process.kill()
        assert process.returncode == 130
        assert "surface-resnet8.nc keeps" in err
        part = results.open("results/surface-resnet8.nc")
        done = int(part.done.sum())
        assert 0 < done < 49
        for out in ([], ["--out", "whole.nc"]):
            assert resprobe(*arguments, *out)[0] == 0
        assert results.open("results/surface-resnet8.nc").equals(results.open("whole.nc"))
        assert sorted(path.name for path in (folder / "results").iterdir()) == ["surface-resnet8.nc"]
