import pytest
import torch

import resprobe
from resprobe.errors import ResprobeError
from resprobe.networks import build, parse_architecture

ARCHITECTURE = parse_architecture("resnet8", width=4, in_channels=1)


def own_content(**changes):
    """The content of a file that `resprobe train` writes."""
    return {
        "format": "resprobe",
        "format_version": 1,
        "state_dict": build(ARCHITECTURE, seed=0).state_dict(),
        "architecture": ARCHITECTURE.as_dict(),
        "data": "digits",
        "normalisation": {"name": "digits", "mean": [0.3], "std": [0.4]},
        "test_error": 0.25,
        **changes,
    }


class TestOwnFiles:
    def test_says_what_it_is(self, write):
        checkpoint = resprobe.load(write(own_content()))
        assert checkpoint.architecture == ARCHITECTURE
        assert checkpoint.data == "digits"
        assert checkpoint.normalisation.mean == (0.3,)
        assert checkpoint.claimed_error == 0.25
        assert not checkpoint.model.training
        for name, tensor in build(ARCHITECTURE, seed=0).state_dict().items():
            assert torch.equal(checkpoint.model.state_dict()[name], tensor)
        assert {fact.how for fact in checkpoint.facts.values()} == {"read"}
        assert checkpoint.provenance["facts"]["depth"] == {"value": 8, "how": "read"}

    def test_found_under_checkpoints(self, write, tmp_path, monkeypatch):
        (tmp_path / "checkpoints").mkdir()
        write(own_content(), "checkpoints/net.pt")
        monkeypatch.chdir(tmp_path)
        assert resprobe.load("net.pt").path.as_posix() == "checkpoints/net.pt"
        write(own_content(test_error=0.5))
        assert resprobe.load("net.pt").claimed_error == 0.5

    @pytest.mark.parametrize(
        ("arch", "message"),
        [
            ("plain8", "expected resnet8, as the file says, got --arch plain8"),
            (
                "resnet14",
                r"layer1.1.conv1.weight: expected shape \(4, 4, 3, 3\) in resnet14, got no such tensor",
            ),
            ("preresnet8", r"layer2.0.bn1.weight: expected shape \(4,\) in preresnet8, got shape \(8,\)"),
            ("resnet9", "expected 6n \\+ 2 layers, got 9"),
        ],
    )
    def test_another_architecture(self, write, arch, message):
        with pytest.raises(ResprobeError, match=message):
            resprobe.load(write(own_content()), arch=arch)

    def test_another_shortcut(self, write):
        with pytest.raises(ResprobeError, match="expected the shortcut pad, as the file says, got projection"):
            resprobe.load(write(own_content()), shortcut="projection")

    def test_another_version(self, write):
        with pytest.raises(ResprobeError, match="expected version 1 .* got 2"):
            resprobe.load(write(own_content(format_version=2)))

    def test_incomplete(self, write):
        content = own_content()
        del content["normalisation"]
        with pytest.raises(ResprobeError, match="expected entries normalisation, got none"):
            resprobe.load(write(content))


class TestForeignFiles:
    @pytest.mark.parametrize("prefix", ["", "module.", "module.module."])
    @pytest.mark.parametrize("wrapped", [False, True])
    def test_wrapper_prefix_and_missing_counters(self, write, prefix, wrapped):
        network = build(parse_architecture("preresnet8", width=4, num_classes=7), seed=0)
        tensors = {
            prefix + name: tensor
            for name, tensor in network.state_dict().items()
            if not name.endswith("num_batches_tracked")
        }
        checkpoint = resprobe.load(write({"state_dict": tensors, "best": 9} if wrapped else tensors), arch="preresnet8")
        assert checkpoint.architecture == network.architecture
        x = torch.randn(2, 3, 8, 8)
        with torch.inference_mode():
            assert torch.equal(checkpoint.model(x), network.eval()(x))
        assert {name for name, fact in checkpoint.facts.items() if fact.how == "assumed"} == {
            *("depth", "residual", "preactivation", "shortcut"),
        }

    @pytest.mark.parametrize("options", [{"norm": "none"}, {"shortcut": "projection"}])
    def test_facts_read_from_the_keys(self, write, options):
        network = build(parse_architecture("resnet8", width=4, **options), seed=0)
        checkpoint = resprobe.load(write(network.state_dict()), arch="resnet8")
        assert checkpoint.architecture == network.architecture

    def test_unknown_tensor(self, write):
        tensors = {**build(ARCHITECTURE).state_dict(), "extra.weight": torch.zeros(2)}
        with pytest.raises(ResprobeError, match=r"extra.weight: expected no such tensor in resnet8, got shape \(2,\)"):
            resprobe.load(write(tensors), arch="resnet8")

    def test_other_key_names(self, write):
        with pytest.raises(ResprobeError, match="got weight: the tensors at the top are no convolution"):
            resprobe.load(write({"weight": torch.zeros(2)}), arch="resnet8")

    def test_another_depth(self, write):
        tensors = {f"body.{key}": tensor for key, tensor in build(ARCHITECTURE).state_dict().items()}
        with pytest.raises(ResprobeError, match="expected resnet14, as --arch says, got the keys of resnet8"):
            resprobe.load(write(tensors), arch="resnet14")
        assert resprobe.load(write(tensors), arch="resnet8").facts["residual"].how == "unsettled"
        assert resprobe.load(write(tensors), arch="plain8").model.architecture.name == "plain8"

    @pytest.mark.parametrize("number", [float("nan"), float("inf")])
    def test_weights_that_are_not_finite(self, write, number):
        tensors = build(ARCHITECTURE).state_dict()
        tensors["layer1.0.conv1.weight"][0] = number
        with pytest.raises(ResprobeError, match="expected finite weights, got NaN or infinity in layer1.0.conv1.weig"):
            resprobe.load(write(tensors), arch="resnet8")

    @pytest.mark.parametrize(("name", "num_correct"), [("akamaster-resnet20", 915)])
    def test_real_files(self, real, name, num_correct):
        checkpoint = resprobe.load(real / f"{name}.th", arch=name.partition("-")[2])
        data = resprobe.open_data(f"npz:{real / 'cifar10-test-1000.npz'}", normalisation="imagenet", num_images=1000)
        with torch.inference_mode():
            correct = sum(int((checkpoint.model(x).argmax(1) == y).sum()) for x, y in data)
        assert correct == num_correct
