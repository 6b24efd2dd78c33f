"""Recognition: our networks under other names, other people's networks, and libraries' networks."""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import resprobe
from resprobe.errors import ResprobeError
from resprobe.loading.patterns import compact
from resprobe.networks import build, parse_architecture

STEMS = {
    "conv1, bn1": ("conv1", "bn1"),
    "conv, bn": ("conv", "bn"),
    "conv_1": ("conv_1", "bn_1"),
    "Sequential": ("conv1.0", "conv1.1"),
    "stem": ("stem.conv", "stem.norm"),
    "embedder": ("resnet.embedder.embedder.convolution", "resnet.embedder.embedder.normalization"),
    "first_layer": ("first_layer", "bn"),
    "init_conv": ("init_conv", "bn0"),
}
BLOCKS = (
    lambda stage, index: f"layer{stage + 1}.{index}",
    lambda stage, index: f"layer{stage}.{index}",
    lambda stage, index: f"stage{stage + 1}.block{index + 1}",
    lambda stage, index: f"stage_{stage + 1}.{index}",
    lambda stage, index: f"conv{stage + 2}_x.{index}",
    lambda stage, index: f"block{stage + 1}.layer.{index}",
    lambda stage, index: f"stages.{stage}.blocks.{index}",
    lambda stage, index: f"resnet.encoder.stages.{stage}.layers.{index}",
    lambda stage, index: f"{('first', 'second', 'third')[stage]}_block.residual_block.{index}",
    lambda stage, index: f"{stage + 4}.{index}",
    lambda stage, index: f"blocks.{2 * stage + index}",
)
# convolution and normalisation of place 1 and 2, after and before activation
INSIDES = (
    lambda kind, place, pre: f"{kind}{place}",
    lambda kind, place, pre: f"{kind}_{place}",
    lambda kind, place, pre: f"{'norm' if kind == 'bn' else kind}{place}",
    lambda kind, place, pre: f"residual_function.{_sequence(kind, place, pre)}",
    lambda kind, place, pre: f"f.{_sequence(kind, place, pre)}",
    lambda kind, place, pre: f"layer.{place - 1}.{'normalization' if kind == 'bn' else 'convolution'}",
    lambda kind, place, pre: f"conv{place}.{kind}",
    lambda kind, place, pre: f"conv{place}.{int((kind == 'bn') != pre)}",
    lambda kind, place, pre: _sequence(kind, place, pre),
)
SHORTCUTS = (("shortcut.0", "shortcut.1"), ("downsample.0", "downsample.1"), ("shortcut.conv", "shortcut.bn"))
SHORTCUTS += (("shortcut.convolution", "shortcut.normalization"), ("convShortcut", "bnShortcut"), ("skip.0", "skip.1"))
SHORTCUTS += (("shortcut_conv", "shortcut_bn"),)
HEADS = ("linear", "fc", "classifier.1", "head.fc", "output")
LAST_NORMS = ("bn", "norm", "bn_final", "post_bn")
WRAPPERS = (
    lambda s: s,
    lambda s: {"state_dict": s, "epoch": 1},
    lambda s: {"net": s, "acc": 90.0},
    lambda s: {"model": s},
)
PREFIXES = ("", "module.", "_orig_mod.module.", "module.model.", "backbone.", "net.module.")


def _sequence(kind, place, pre):
    """The place in Sequential(conv, bn, relu, conv, bn) or Sequential(bn, relu, conv, bn, relu, conv)."""
    return str(3 * (place - 1) + (2 if pre and kind == "conv" else int(not pre and kind == "bn")))


def renamed(tensors, *, stem, block, inside, shortcut, head, last_norm, pre):
    """Give our tensors other names."""

    def rename(name):
        if found := re.fullmatch(r"layer(\d)\.(\d)\.(.*)", name):
            path, part = block(int(found[1]) - 1, int(found[2])), found[3]
            if place := re.fullmatch(r"(conv|bn)(\d)", part):
                return f"{path}.{inside(place[1], int(place[2]), pre)}"
            return f"{path}.{shortcut[int(part[-1])]}"
        return {"conv1": stem[0], "bn1": stem[1], "bn": last_norm, "linear": head}[name]

    return {f"{rename(key.rpartition('.')[0])}.{key.rpartition('.')[2]}": value for key, value in tensors.items()}


@st.composite
def layouts(draw):
    options = {
        "stem": draw(st.sampled_from(list(STEMS.values()))),
        "block": draw(st.sampled_from(BLOCKS)),
        "inside": draw(st.sampled_from(INSIDES)),
        "shortcut": draw(st.sampled_from(SHORTCUTS)),
        "head": draw(st.sampled_from(HEADS)),
        "last_norm": draw(st.sampled_from(LAST_NORMS)),
    }
    pre = draw(st.booleans())
    name = ("pre" if pre else "") + draw(st.sampled_from(["resnet8", "resnet14", "plain8", "plain14"]))
    facts = {
        "in_channels": draw(st.sampled_from([1, 3])),
        "num_classes": draw(st.sampled_from([2, 10])),
        "width": draw(st.sampled_from([3, 4])),
        "norm": draw(st.sampled_from(["batch", "none"])) if not pre else "batch",
    }
    if "plain" not in name:
        facts["shortcut"] = draw(st.sampled_from(["pad", "projection"]))
    return options | {"pre": pre}, name, facts, draw(st.sampled_from(PREFIXES)), draw(st.sampled_from(WRAPPERS))


class TestRenaming:
    @settings(max_examples=80, suppress_health_check=list(HealthCheck))
    @given(layout=layouts())
    def test_same_logits(self, layout, tmp_path_factory, trained_like):
        """Whatever the parts are called, the file opens as the network that it is."""
        names, name, facts, prefix, wrap = layout
        network = trained_like(build(parse_architecture(name, **facts), seed=0))
        tensors = {prefix + key: value for key, value in renamed(network.state_dict(), **names).items()}
        path = tmp_path_factory.getbasetemp() / "renamed.pt"
        torch.save(wrap(tensors), path)
        residual = "plain" not in name
        known = {"padding": "both"} if facts.get("shortcut") == "pad" else {}
        known |= {"shortcut_input": "raw"} if names["pre"] and residual else {}
        shortcut = facts.get("shortcut", "none")
        checkpoint = resprobe.load(path, facts=known, shortcut=None if shortcut == "projection" else shortcut)
        assert checkpoint.architecture.name == name
        assert {fact: checkpoint.facts[fact].value for fact in facts} == facts
        images = torch.randn(2, facts["in_channels"], 12, 12, generator=torch.Generator().manual_seed(0))
        with torch.inference_mode():
            assert torch.equal(checkpoint.model(images), network(images))
        assert checkpoint.facts["shortcut"].how == ("read" if shortcut == "projection" else "assumed")

    @pytest.mark.parametrize("name", ["resnet14", "preresnet14"])
    def test_units_are_called_as_in_the_file(self, write, name):
        tensors = build(parse_architecture(name, width=4, shortcut="projection"), seed=0).state_dict()
        pre = name.startswith("pre")
        layout = {"stem": STEMS["conv, bn"], "inside": INSIDES[3], "shortcut": SHORTCUTS[2], "head": "fc", "pre": pre}
        path = write(renamed(tensors, **layout, block=BLOCKS[2], last_norm="bn"))
        checkpoint = resprobe.load(path, facts={"shortcut_input": "raw"} if pre else None)
        units = resprobe.lesion(checkpoint.model, [(torch.randn(2, 3, 12, 12), torch.tensor([0, 1]))]).unit.values
        assert list(units) == [f"stage{stage}.block{block}" for stage in (1, 2, 3) for block in (1, 2)]


@pytest.fixture(scope="session")
def trained_like():
    """Give normalisations statistics that are not 0 and 1."""

    def change(network):
        generator = torch.Generator().manual_seed(0)
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                for tensor in (module.running_mean, module.bias.data):
                    tensor.uniform_(-0.3, 0.3, generator=generator)
                for tensor in (module.running_var, module.weight.data):
                    tensor.uniform_(0.5, 1.5, generator=generator)
        return network.eval()

    return change


class TestShapes:
    def test_pruned_widths(self, write):
        """Every convolution may have a width of its own; only the ends of blocks are bound."""
        network = build(parse_architecture("resnet14", width=8, shortcut="projection"), seed=0)
        for stage, keep in (("layer1", 5), ("layer2", 11), ("layer3", 3)):
            block = network.get_submodule(f"{stage}.1")
            block.conv1.weight = nn.Parameter(block.conv1.weight[:keep])
            block.conv2.weight = nn.Parameter(block.conv2.weight[:, :keep])
            for name in ("weight", "bias"):
                setattr(block.bn1, name, nn.Parameter(getattr(block.bn1, name)[:keep]))
            for name in ("running_mean", "running_var"):
                setattr(block.bn1, name, getattr(block.bn1, name)[:keep])
        checkpoint = resprobe.load(write(network.state_dict()))
        images = torch.randn(2, 3, 12, 12)
        with torch.inference_mode():
            assert torch.equal(checkpoint.model(images), network.eval()(images))
        assert checkpoint.facts["layer_widths"].value == "8/8 5/8 16/16 11/16 32/32 3/32"

    def test_fewer_channels_leave_no_shortcut(self, write):
        tensors = build(parse_architecture("plain8", width=8), seed=0).state_dict()
        tensors["layer3.0.conv2.weight"] = torch.ones(7, 32, 3, 3)
        for leaf in ("weight", "bias", "running_mean", "running_var"):
            tensors[f"layer3.0.bn2.{leaf}"] = torch.ones(7)
        tensors["linear.weight"] = torch.ones(10, 7)
        fact = resprobe.load(write(tensors)).facts["shortcut"]
        assert (fact.value, fact.how) == ("none", "read")

    def test_order_of_the_alphabet(self, tmp_path):
        pytest.importorskip("safetensors")
        from safetensors.torch import save_file

        network = build(parse_architecture("resnet74", width=2, shortcut="projection"), seed=0).eval()
        save_file({key: value.contiguous() for key, value in network.state_dict().items()}, tmp_path / "n.safetensors")
        checkpoint = resprobe.load(tmp_path / "n.safetensors")
        images = torch.randn(2, 3, 12, 12)
        with torch.inference_mode():
            assert torch.equal(checkpoint.model(images), network(images))


class TestOthers:
    @pytest.mark.parametrize(
        ("name", "facts"),
        [
            ("residual_function", {"depth": 20, "block": "bottleneck", "groups": 2, "stride_place": 2}),
            ("left and right", {"depth": 14, "convolution_bias": True, "shortcut": "projection"}),
            ("third convolution", {"depth": 14, "shortcut": "projection"}),
            ("third convolution with norm", {"depth": 14, "shortcut": "projection"}),
            ("two linear layers", {"depth": 7, "norm": "none", "stem_stride": 2, "first_stage_stride": 2}),
        ],
    )
    def test_nothing_to_settle(self, write, other, name, facts):
        network = other(name)
        checkpoint = resprobe.load(write(network.state_dict()), images=None)
        if name == "two linear layers":  # the images say which strides lead to the map that its linear layers read
            checkpoint = resprobe.load(write(network.state_dict()), images=_Sided())
        images = torch.randn(2, 3, 16, 16)
        with torch.inference_mode():
            assert torch.equal(checkpoint.model(images), network(images))
        assert {fact: checkpoint.facts[fact].value for fact in facts} == facts

    @pytest.mark.parametrize(
        ("name", "options", "preactivation"),
        [
            ("one width, pre-activation", {"facts": {"shortcut_input": "projections"}}, True),
            ("one width, last norm", {"facts": {"shortcut_input": "projections"}}, True),
            ("one width, post-activation", {"shortcut": "none"}, False),
        ],
    )
    def test_where_sizes_tell_nothing(self, write, other, name, options, preactivation):
        """With one width everywhere, the order of the keys tells norms before and after convolutions apart."""
        network = other(name)
        checkpoint = resprobe.load(write(network.state_dict()), **options)
        assert checkpoint.facts["preactivation"].value == preactivation
        images = torch.randn(2, 3, 16, 16)
        with torch.inference_mode():
            assert torch.equal(checkpoint.model(images), network(images))

    @pytest.mark.parametrize("arch", ["resnet18", "resnext50_32x4d"])
    def test_torchvision(self, tmp_path, arch):
        from torchvision import models

        self._check_library(models.get_model(arch, num_classes=7), f"torchvision:{arch}", tmp_path, {})

    @pytest.mark.parametrize(
        ("arch", "facts"), [("resnet26d", {}), ("resnet14t", {}), ("resnetv2_50", {"shortcut_input": "projections"})]
    )
    def test_timm(self, tmp_path, arch, facts):
        timm = pytest.importorskip("timm")
        self._check_library(timm.create_model(arch, num_classes=7), f"timm:{arch}", tmp_path, facts)

    @staticmethod
    def _check_library(network: nn.Module, arch: str, folder: Path, facts: dict[str, str]):
        network.eval()
        torch.save(network.state_dict(), folder / "net.pt")
        recognised = resprobe.load(folder / "net.pt", facts=facts)
        named = resprobe.load(folder / "net.pt", arch=arch)
        assert named.architecture.num_classes == recognised.architecture.num_classes == 7
        images = torch.randn(1, 3, 64, 64)
        with torch.inference_mode():
            expected = network(images)
            torch.testing.assert_close(recognised.model(images), expected, rtol=1e-5, atol=1e-6)
            assert torch.equal(named.model(images), expected)

    def test_library_mismatch(self, write):
        from torchvision import models

        path = write(models.resnet18().state_dict())
        with pytest.raises(
            ResprobeError, match=r"layer1.0.conv1.weight: expected shape .* in torchvision:resnet50, got"
        ):
            resprobe.load(path, arch="torchvision:resnet50")
        with pytest.raises(ResprobeError, match="arch torchvision: expected one of .*, got 'resnet35'; did you mean"):
            resprobe.load(path, arch="torchvision:resnet35")


class _Sided(list):
    image_shape = (3, 16, 16)


def _vgg():
    convolutions = {f"features.{i}": nn.Conv2d(8 if i else 3, 8, 3) for i in (0, 3, 6)}
    modules = {**convolutions, "fc": nn.Linear(8, 10)}
    return {f"{name}.{key}": value for name, module in modules.items() for key, value in module.state_dict().items()}


def _mobilenet():
    from torchvision import models

    return models.mobilenet_v2(width_mult=0.25).state_dict()


FAMILIES = {
    "vgg": _vgg,
    "mobilenet": _mobilenet,
    "vit": lambda: {"class_token": torch.ones(1, 1, 8), "conv_proj.weight": torch.ones(8, 3, 4, 4)},
}


class TestRefusals:
    @pytest.mark.parametrize(
        ("family", "message"),
        [
            (
                "vgg",
                "got features.{0,3,6}.{weight,bias}, fc.{weight,bias}: there is no module that holds two convolutions",
            ),
            ("mobilenet", "features.18.0 of shape .* has no place in a stem of 8 channels"),
            ("vit", "the tensors at the top are no convolution"),
        ],
    )
    def test_other_families(self, write, family, message):
        with pytest.raises(ResprobeError, match=message) as caught:
            resprobe.load(write(FAMILIES[family]()))
        assert "the nearest convention has blocks like" in str(caught.value)
        assert "name the network with --arch" in str(caught.value)

    def test_what_is_not_covered(self, write):
        tensors = build(parse_architecture("resnet8", width=4), seed=0).state_dict()
        for stage in (1, 2, 3):
            tensors[f"layer{stage}.0.gate.scale"] = torch.ones(1)
        message = (
            "layer1.0.gate is no convolution.* layer1.0 .* with conv1, bn1 .* doesn't cover layer{1-3}.0.gate.scale"
        )
        with pytest.raises(ResprobeError, match=message):
            resprobe.load(write(tensors))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"shortcut": "projection"}, "expected as shortcut pad or none, got projection; choose one of them"),
            ({"facts": {"padding": "left"}}, "expected as padding both or end or start, got left"),
            ({"facts": {"colour": "red"}}, "expected as fact one of shortcut, padding, .* got colour; leave it out"),
        ],
    )
    def test_wrong_answers(self, write, options, message):
        path = write(build(parse_architecture("resnet8", width=4), seed=0).state_dict())
        with pytest.raises(ResprobeError, match=message):
            resprobe.load(path, **options)

    def test_answer_against_the_keys(self, write):
        path = write(build(parse_architecture("resnet8", width=4, shortcut="projection"), seed=0).state_dict())
        with pytest.raises(ResprobeError, match="expected as shortcut projection, as its keys show, got none"):
            resprobe.load(path, shortcut="none")
        assert resprobe.load(path, shortcut="projection").facts["shortcut"].how == "read"


class TestCompact:
    @pytest.mark.parametrize(
        ("keys", "text"),
        [
            (["a.weight"], "a.weight"),
            (["a.1.w", "a.2.w", "a.3.w", "a.7.w"], "a.{1,2,3,7}.w"),
            (["l1.0.c1.w", "l1.1.c2.w", "l2.0.c1.w", "l2.2.c1.w", "l3.0.c1.w"], "l{1-3}.{0-2}.c{1,2}.w"),
            (["weight", "bias"], "{weight,bias}"),
        ],
    )
    def test_patterns(self, keys, text):
        assert compact(keys) == text

    def test_long_lists(self):
        assert compact([f"{letter}.w" for letter in "abcde"], most=2) == "a.w, b.w and 3 more"
