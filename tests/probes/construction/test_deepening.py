import json

import numpy as np
import pytest
import torch

import resprobe
from resprobe import results
from resprobe.networks import build, parse_architecture


def save(path, name, *, network=None, **entries):
    architecture = parse_architecture(name, width=4, in_channels=1)
    content = {
        "format": "resprobe",
        "format_version": 1,
        "state_dict": (network or build(architecture, seed=0)).state_dict(),
        "architecture": architecture.as_dict(),
        "data": "digits",
        "normalisation": {"name": "digits", "mean": [0.3052], "std": [0.376]},
        **entries,
    }
    torch.save(content, path)


@pytest.fixture
def folder(tmp_path, monkeypatch, make_net):
    (tmp_path / "checkpoints").mkdir()
    for name in ("resnet8", "plain8"):
        save(tmp_path / "checkpoints" / f"{name}.pt", name, network=make_net(name), test_error=0.25)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder, command_line):
    """Run the command line in the folder; gives exit code, stdout, stderr."""
    return command_line


DEEPEN = ("deepen", "--ckpt", "plain8.pt", "--units", 3, "--num-images", 30, "--out", "deep.pt")


class TestCommand:
    @pytest.mark.parametrize("name", ["plain", "resnet"])
    def test_checkpoint_table_and_comparison(self, run, name, folder):
        code, out, err = run("deepen", "--ckpt", f"{name}8.pt", "--units", 3, "--num-images", 30, "--out", "deep.pt")
        assert code == 0
        assert f"{name}8.pt ({name}8) on digits, train images, 30 of them" in out
        deeper = "plain14 (measured)" if name == "plain" else "resnet14"
        assert f"{deeper}, stored statistics: same to the bit on all 30 images" in out
        assert all(len(line) <= 80 for line in out.splitlines())
        assert f"saved deep.pt, {name}14; its comparison is deep-comparison.nc" in err
        source, deep = resprobe.load(f"{name}8.pt"), resprobe.load("deep.pt")
        assert deep.architecture.name == f"{name}14"
        assert (deep.data, deep.normalisation, deep.claimed_error) == ("digits", source.normalisation, 0.25)
        assert deep.facts["deepened_from"].value == f"{name}8.pt"
        test_images = next(iter(resprobe.open_data("digits")))[0]
        with torch.no_grad():
            assert torch.equal(deep.model(test_images), source.model(test_images))
        content = torch.load("deep.pt", weights_only=True)["construction"]
        assert (content["checkpoint_sha256"], content["num_units"]) == (source.sha256, 3)
        assert content["compared_on"]["num_images"] == 30
        assert content["comparison"]["running"]["logit_change"] == 0
        dataset = results.open("deep-comparison.nc")
        assert content["comparison"]["batch"]["logit_change"] == float(dataset.logit_change.sel(bn_mode="batch"))
        assert json.loads(dataset.attrs["settings"])["deepened"] == f"{name}14"
        assert dataset.attrs["checkpoint_sha256"] == source.sha256

    def test_to_is_another_way_to_say_units(self, run, folder):
        assert run(*DEEPEN)[0] == 0
        assert run("deepen", "--ckpt", "plain8.pt", "--to", "plain14", "--num-images", 30, "--out", "to.pt")[0] == 0
        assert (folder / "to.pt").read_bytes() == (folder / "deep.pt").read_bytes()

    def test_again_and_over_another_file(self, run, folder):
        run(*DEEPEN)
        before = (folder / "deep.pt").read_bytes()
        code, _, err = run(*DEEPEN)
        assert (code, (folder / "deep.pt").read_bytes()) == (0, before)
        assert "deep.pt holds this network already" in err
        code, _, err = run(*DEEPEN, "--statistics", "unit")
        assert (code, (folder / "deep.pt").read_bytes()) == (1, before)
        assert "deep.pt: expected the same network or no file, got another file" in err
        assert run(*DEEPEN, "--statistics", "unit", "--overwrite")[0] == 0
        assert (folder / "deep.pt").read_bytes() != before
        assert json.loads(results.open("deep-comparison.nc").attrs["settings"])["statistics"] == "unit"

    def test_training_goes_on_from_it(self, run, folder):
        run(*DEEPEN)
        pixels = np.random.default_rng(0).integers(0, 255, (40, 8, 8), np.uint8)
        np.savez("few.npz", x=pixels, y=np.arange(40) % 10)
        data = ("--data", "npz:few.npz", "--test-data", "npz:few.npz", "--normalise", ".3/.4", "--classes", 10)
        train = ("train", *data, "--width", 4, "--epochs", 1, "--quiet")
        code, _, _ = run(*train, "--arch", "plain14", "--init-from", "deep.pt", "--out", "on.pt")
        assert code == 0
        started, drawn = (torch.load(name, weights_only=True)["state_dict"] for name in ("on.pt", "deep.pt"))
        # after one epoch at a tenth of the rate the added layers are still nearly the identity
        weight = started["layer1.1.conv1.weight"]
        assert 0 < (weight - drawn["layer1.1.conv1.weight"]).abs().max() < 0.2
        assert results.open("on-training.nc").attrs["checkpoint"] == "on.pt"
        code, _, err = run(*train, "--arch", "plain8", "--init-from", "deep.pt", "--out", "other.pt")
        assert code == 1
        assert "init-from: expected a network" in err
        code, _, err = run(*train, "--arch", "plain14", "--out", "on.pt")
        assert code == 1
        assert "on.pt: expected the same training, got start.sha256" in err

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--units", 4], "units: expected a multiple of 3, so that each stage gets as many, got 4; take 3 or 6"),
            ([], "units: expected --units N or --to NAME, got neither"),
            (["--units", 3, "--to", "plain14"], "units: expected --units N or --to NAME, got both"),
            (["--to", "resnet14"], "to: expected a deeper plainN for plain8, got resnet14"),
            (["--units", 3, "--statistics", "batch"], "statistics: expected measured or unit, got 'batch'"),
            (["--units", 3, "--normalise", "npz:mean.npz"], "normalise: expected constants per channel"),
        ],
    )
    def test_refusals_write_nothing(self, run, folder, options, message):
        before = sorted(folder.rglob("*"))
        code, out, err = run("deepen", "--ckpt", "plain8.pt", "--out", "deep.pt", "--num-images", 30, *options)
        assert (code, out) == (1, "")
        assert f"resprobe: error: {message}" in err
        assert sorted(folder.rglob("*")) == before

    @pytest.mark.parametrize(("change", "code"), [(0.01, 1), (1e-6, 0)])
    def test_another_function_is_refused_and_rounding_is_not(self, run, folder, monkeypatch, change, code):
        from resprobe.probes.construction import deepening

        def deepen_wrongly(*args, **options):
            network = deepen(*args, **options)
            network.linear.bias.data[0] += change
            return network

        deepen = deepening.deepen
        monkeypatch.setattr(deepening, "deepen", deepen_wrongly)
        got, out, err = run(*DEEPEN)
        assert got == code
        if code == 0:
            assert "logits differ by up to 9" in out or "logits differ by up to 1" in out
            return
        assert "plain8.pt: expected the same logits after deepening, got a difference of 0.01 on logits up to" in err
        assert not (folder / "deep.pt").exists()


def test_default_images_are_those_of_the_training(folder, make_net):
    from resprobe.cli.opening import MOST_TO_DEEPEN, open_training_images
    from resprobe.cli.options import Common

    images = open_training_images("plain8.pt", resprobe.load("plain8.pt"), Common(ckpt=["plain8.pt"]))
    assert (images.split, images.num_images) == ("train", 1297)
    np.savez(folder / "many.npz", x=np.zeros((MOST_TO_DEEPEN + 5, 8, 8), np.uint8), y=np.zeros(MOST_TO_DEEPEN + 5, int))
    many = Common(ckpt=["plain8.pt"], data="npz:many.npz")
    assert open_training_images("plain8.pt", resprobe.load("plain8.pt"), many).num_images == MOST_TO_DEEPEN
