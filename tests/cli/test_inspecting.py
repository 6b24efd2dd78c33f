import json
import re

import numpy as np
import pytest
import torch

from resprobe.cli.opening import parse_facts
from resprobe.errors import ResprobeError
from resprobe.networks import build, parse_architecture
from resprobe.probes.costs.costing import multiply_adds

KEYS = ["architecture", "facts", "units", "num_params", "multiply_adds", "claimed_error", "baseline_error"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with images, and checkpoints that know and that don't know what they are."""
    generator = np.random.default_rng(0)
    np.savez(
        tmp_path / "images.npz",
        x=generator.integers(0, 255, (60, 16, 16, 3), dtype=np.uint8),
        y=np.arange(60) % 10,
    )
    np.savez(tmp_path / "mean.npz", mean=np.full((16, 16, 3), 0.5), std=np.array([0.25, 0.25, 0.25]))
    np.savez(tmp_path / "small.npz", mean=np.full((8, 8, 3), 0.5))
    architecture = parse_architecture("resnet8", width=4, in_channels=1)
    own = {
        "format": "resprobe",
        "format_version": 1,
        "state_dict": build(architecture, seed=0).state_dict(),
        "architecture": architecture.as_dict(),
        "data": "digits",
        "normalisation": {"name": "digits", "mean": [0.3052], "std": [0.376]},
        "test_error": 0.5,
    }
    torch.save(own, tmp_path / "own.pt")
    for shortcut in ("pad", "projection"):
        tensors = build(parse_architecture("resnet8", width=4, shortcut=shortcut), seed=0).state_dict()
        torch.save({"state_dict": tensors, "acc": 99.0}, tmp_path / f"{shortcut}.pt")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def resprobe(folder, command_line):
    """Run the command line in the folder; gives exit code, stdout, stderr."""
    return command_line


DATA = ("--data", "npz:images.npz", "--normalise", "cifar10")


class TestJson:
    def test_one_object(self, resprobe):
        code, out, err = resprobe("inspect", "--ckpt", "projection.pt", "--json")
        assert code == 0
        content = json.loads(out)
        assert list(content) == KEYS
        assert content["architecture"] == "resnet8"
        assert content["facts"]["shortcut"] == {"value": "projection", "how": "read"}
        assert [unit["name"] for unit in content["units"]] == ["layer1.0", "layer2.0", "layer3.0"]
        assert content["units"][1] == {
            "name": "layer2.0",
            "kind": "residual",
            "shortcut": "projection",
            "stage": 2,
            "branch_layers": 2,
            "num_params": 4 * 8 * 9 + 8 * 8 * 9 + 4 * 8 + 3 * 2 * 8,
            "input_shape": [4, 32, 32],
            "output_shape": [8, 16, 16],
            "status": "ok",
        }
        assert content["claimed_error"] == pytest.approx(0.01)
        assert content["baseline_error"] is None
        assert "images of 32x32 are assumed" in err

    def test_unsettled(self, resprobe):
        content = json.loads(resprobe("inspect", "--ckpt", "pad.pt", "--json")[1])
        assert content["architecture"] == "resnet8 or plain8"
        assert content["facts"]["shortcut"] == {"value": None, "how": "unsettled", "options": ["pad", "none"]}
        assert {unit["kind"] for unit in content["units"]} == {None}

    def test_own_file(self, resprobe):
        content = json.loads(resprobe("inspect", "--ckpt", "own.pt", "--json")[1])
        assert content["facts"]["shortcut"] == {"value": "pad", "how": "read"}
        assert content["claimed_error"] == 0.5
        assert content["baseline_error"] == pytest.approx(0.9, abs=0.05)

    def test_library(self, resprobe, folder):
        from torchvision import models

        torch.save(models.resnet18(num_classes=3).state_dict(), folder / "r18.pth")
        out = resprobe("inspect", "--ckpt", "r18.pth", "--arch", "torchvision:resnet18", "--json")[1]
        content = json.loads(out)
        assert content["architecture"] == "torchvision:resnet18"
        assert content["facts"]["shortcut"] == {"value": "projection", "how": "read"}
        assert content["multiply_adds"] == pytest.approx(1.814e9, rel=1e-3)
        recognised = json.loads(resprobe("inspect", "--ckpt", "r18.pth", "--json")[1])
        assert {**recognised, "architecture": "", "facts": {}} == {**content, "architecture": "", "facts": {}}


class TestTables:
    def test_with_data(self, resprobe):
        code, out, err = resprobe("inspect", "--ckpt", "projection.pt", *DATA)
        assert code == 0
        assert "projection.pt: resnet8\n" in out
        assert "shortcut            projection" in out
        assert "error: claimed 1.0 %, measured 8" in out
        assert "error by normalisation: imagenet 8" in out
        assert "where the file claims 1.0 %; likely causes: another normalisation (--normalise)" in err

    def test_unsettled(self, resprobe):
        _, out, _ = resprobe("inspect", "--ckpt", "pad.pt")
        assert "pad or none?" in out
        assert "padding             both or end or start?" in out
        assert "measured unknown" in out

    def test_several(self, resprobe):
        _, out, _ = resprobe("inspect", "--ckpt", "projection.pt", "--ckpt", "pad.pt", "--quiet")
        assert "projection.pt: resnet8\n" in out
        assert "pad.pt: resnet8 or plain8\n" in out


class TestAnalyses:
    def test_unsettled_is_refused(self, resprobe, folder):
        code, _, err = resprobe("lesion", "--ckpt", "pad.pt")
        assert code == 1
        assert "expected to know shortcut (pad or none)" in err
        assert "--shortcut pad|none" in err
        code, _, err = resprobe("lesion", "--ckpt", "pad.pt", *DATA)
        assert code == 1
        assert "scores that don't settle it" in err
        assert not (folder / "results").exists()

    def test_flags(self, resprobe):
        code, out, err = resprobe("lesion", "--ckpt", "pad.pt", *DATA, "--shortcut", "pad", "--fact", "padding=both")
        assert code == 0
        assert "pad.pt (resnet8) on npz:images.npz" in out
        assert "pad.pt: took state_dict" in err
        assert "warning: measured an error of" in err

    def test_another_fact_is_another_result(self, resprobe):
        call = ("lesion", "--ckpt", "pad.pt", *DATA, "--shortcut", "pad", "--fact")
        assert resprobe(*call, "padding=both")[0] == 0
        code, _, err = resprobe(*call, "padding=end")
        assert code == 1
        assert "expected the same result or no file" in err
        assert "holds this result already" in resprobe(*call, "padding=both")[2]

    def test_state(self, resprobe, folder):
        content = torch.load(folder / "projection.pt", weights_only=True)
        torch.save({**content, "state_dict_ema": content["state_dict"]}, folder / "two.pt")
        _, out, err = resprobe("inspect", "--ckpt", "two.pt", "--state", "state_dict_ema")
        assert "two.pt: took state_dict_ema; --state also offers state_dict" in err
        assert "state_dict          state_dict_ema" in out

    @pytest.mark.parametrize("text", ["padding", "=both", "padding="])
    def test_facts_of_another_form(self, text):
        with pytest.raises(ResprobeError, match="fact: expected NAME=VALUE"):
            parse_facts([text])


class TestPixelMeans:
    def test_the_same_as_constants(self, resprobe):
        """A mean image of one colour is a normalisation by constants."""
        first = resprobe(
            "inspect", "--ckpt", "projection.pt", "--data", "npz:images.npz", "--normalise", "npz:mean.npz"
        )
        again = resprobe(
            "inspect", "--ckpt", "projection.pt", "--data", "npz:images.npz", "--normalise", ".5,.5,.5/.25,.25,.25"
        )
        assert first[0] == 0
        assert first[1] == again[1]

    @pytest.mark.parametrize(
        ("file", "message"),
        [
            ("small.npz", r"expected images of shape \(3, 8, 8\), got \(3, 16, 16\)"),
            ("images.npz", "expected an npz file with an array mean"),
            ("absent.npz", "expected an npz file with an array mean"),
        ],
    )
    def test_refused(self, resprobe, file, message):
        code, _, err = resprobe(
            "lesion", "--ckpt", "projection.pt", "--data", "npz:images.npz", "--normalise", f"npz:{file}"
        )
        assert code == 1
        assert re.search(message, err)

    def test_values_up_to_255(self, resprobe, folder):
        np.savez(folder / "large.npz", mean=np.full((16, 16, 3), 120.0))
        _, _, err = resprobe(
            "lesion", "--ckpt", "projection.pt", "--data", "npz:images.npz", "--normalise", "npz:large.npz"
        )
        assert "divide values for 0..255 by 255" in err

    def test_not_for_training(self, resprobe):
        call = (
            "train",
            "--arch",
            "resnet8",
            "--data",
            "npz:images.npz",
            "--out",
            "n.pt",
            "--normalise",
            "npz:mean.npz",
        )
        assert "expected constants per channel for training" in resprobe(*call)[2]


class TestChannels:
    def test_images_that_dont_fit(self, resprobe):
        code, _, err = resprobe("inspect", "--ckpt", "own.pt", "--data", "npz:images.npz", "--normalise", "cifar10")
        assert code == 1
        assert "expected 1 channels for own.pt, got 3" in err

    def test_without_normalise(self, resprobe):
        code, out, err = resprobe("inspect", "--ckpt", "projection.pt", "--data", "npz:images.npz")
        assert code == 0
        assert "no --normalise is given; the statistics were compared under imagenet" in err
        assert "measured unknown" in out
        assert "error by normalisation: imagenet" in out


class TestCost:
    @pytest.mark.parametrize(
        ("name", "options", "shape", "expected"),
        [
            ("resnet56", {}, (3, 32, 32), 125_485_696),
            ("resnet8", {"width": 4, "in_channels": 1}, (1, 8, 8), None),
        ],
    )
    def test_multiply_adds(self, name, options, shape, expected):
        network = build(parse_architecture(name, **options), seed=0).eval()
        if expected is None:
            # 9 multiply-adds per weight and pixel: stem, two layers of 8x8, and per later stage two layers
            expected = 64 * 9 * (4 + 2 * 16) + 16 * 9 * (4 * 8 + 64) + 4 * 9 * (8 * 16 + 256) + 16 * 10
        assert multiply_adds(network, shape) == expected
