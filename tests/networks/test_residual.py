import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from resprobe.errors import ResprobeError
from resprobe.networks import Architecture, build, parse_architecture
from resprobe.units.bypass import Bypass

NAMES = ["resnet20", "plain20", "preresnet20", "preplain20"]


class TestArchitecture:
    @pytest.mark.parametrize("name", [*NAMES, "resnet8", "plain56", "preresnet110"])
    def test_name_and_dict_round_trip(self, name):
        architecture = parse_architecture(name, width=4, in_channels=1, num_classes=7, norm="none")
        assert architecture.name == name
        assert Architecture.from_dict(architecture.as_dict()) == architecture

    def test_shortcuts_by_default(self):
        assert parse_architecture("resnet20").shortcut == "pad"
        assert parse_architecture("plain20").shortcut == "none"

    @pytest.mark.parametrize(
        ("depth", "nearest"), [(18, "14 or 20"), (21, "20 or 26"), (7, "8"), (2, "8"), (109, "104 or 110")]
    )
    def test_other_depths_name_the_nearest(self, depth, nearest):
        with pytest.raises(ResprobeError, match=f"expected 6n \\+ 2 layers, got {depth}; take {nearest}$"):
            parse_architecture(f"resnet{depth}")

    @pytest.mark.parametrize("name", ["vgg16", "resnet", "ResNet20", "resnet20x", "wideresnet20", "resnet-20"])
    def test_unknown_names_list_the_forms(self, name):
        with pytest.raises(ResprobeError, match="resnetN, plainN, preresnetN, preplainN"):
            parse_architecture(name)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"width": 0}, "width: expected a whole number from 1, got 0"),
            ({"in_channels": -1}, "in_channels: expected"),
            ({"num_classes": True}, "num_classes: expected a whole number from 1, got True"),
            ({"shortcut": "none"}, "residual net: expected pad or projection, got 'none'"),
            ({"norm": "layer"}, "norm: expected batch or none, got 'layer'"),
        ],
    )
    def test_values_out_of_range(self, options, message):
        with pytest.raises(ResprobeError, match=message):
            parse_architecture("resnet20", **options)

    def test_a_plain_net_has_no_shortcut(self):
        with pytest.raises(ResprobeError, match="plain net: expected none, got 'pad'"):
            parse_architecture("plain20", shortcut="pad")

    def test_dicts_of_another_version(self):
        values = parse_architecture("resnet20").as_dict()
        with pytest.raises(ResprobeError, match="got .*, dropout; the file is damaged or from another version"):
            Architecture.from_dict({**values, "dropout": 0.1})


class TestParameters:
    @pytest.mark.parametrize(
        ("name", "num_params"), [("resnet20", 269_722), ("resnet56", 853_018), ("resnet110", 1_727_962)]
    )
    def test_published_counts(self, name, num_params):
        net = build(parse_architecture(name))
        assert sum(parameter.numel() for parameter in net.parameters()) == num_params

    @pytest.mark.parametrize("prefix", ["", "pre"])
    def test_a_plain_net_has_the_parameters_of_the_residual_net(self, prefix):
        residual, plain = (build(parse_architecture(f"{prefix}{name}20"), seed=1) for name in ("resnet", "plain"))
        residual_state, plain_state = residual.state_dict(), plain.state_dict()
        assert list(residual_state) == list(plain_state)
        assert all(torch.equal(residual_state[key], plain_state[key]) for key in residual_state)

    def test_keys_of_the_projection(self):
        keys = build(parse_architecture("resnet8", shortcut="projection", width=2)).state_dict().keys()
        shortcut = sorted({".".join(key.split(".")[:-1]) for key in keys if "shortcut" in key})
        assert shortcut == [f"layer{stage}.0.shortcut.{index}" for stage in (2, 3) for index in (0, 1)]

    def test_without_normalisation_convolutions_have_a_bias(self):
        for name in NAMES:
            net = build(parse_architecture(name, norm="none", width=2))
            assert not any(isinstance(module, nn.BatchNorm2d) for module in net.modules())
            assert all(module.bias is not None for module in net.modules() if isinstance(module, nn.Conv2d))
            assert "layer1.0.conv1.bias" in net.state_dict()

    def test_every_residual_block_has_a_shortcut_and_no_plain_one(self):
        for name in NAMES:
            net = build(parse_architecture(name, width=2))
            blocks = [*net.layer1, *net.layer2, *net.layer3]
            assert len(blocks) == 9
            assert all(hasattr(block, "shortcut") == ("resnet" in name) for block in blocks)
        pads = [block for block in build(parse_architecture("resnet20")).modules() if isinstance(block, Bypass)]
        assert len(pads) == 2


def naive_logits(state, x, *, residual, preactivation, shortcut):
    """The network written down layer by layer, from the keys alone."""

    def conv(key, x, stride=1):
        return F.conv2d(x, state[f"{key}.weight"], state.get(f"{key}.bias"), stride=stride, padding=1)

    def norm(key, x):
        if f"{key}.weight" not in state:
            return x
        names = ("running_mean", "running_var", "weight", "bias")
        return F.batch_norm(x, *(state[f"{key}.{name}"] for name in names))

    def bypass(key, x, stride):
        if stride == 1:
            return x
        if shortcut == "pad":
            zeros = torch.zeros_like(x[:, : x.shape[1] // 2, ::2, ::2])
            return torch.cat([zeros, x[:, :, ::2, ::2], zeros], dim=1)
        bias = state.get(f"{key}.shortcut.0.bias")
        return norm(f"{key}.shortcut.1", F.conv2d(x, state[f"{key}.shortcut.0.weight"], bias, stride=2))

    x = conv("conv1", x)
    if not preactivation:
        x = norm("bn1", x).relu()
    blocks = dict.fromkeys(key.rsplit(".", 2)[0] for key in state if ".conv1." in key)
    for key in blocks:
        stride = 2 if key in ("layer2.0", "layer3.0") else 1
        if preactivation:
            y = conv(f"{key}.conv1", norm(f"{key}.bn1", x).relu(), stride)
            y = conv(f"{key}.conv2", norm(f"{key}.bn2", y).relu())
            x = y + bypass(key, x, stride) if residual else y
        else:
            y = norm(f"{key}.bn1", conv(f"{key}.conv1", x, stride)).relu()
            y = norm(f"{key}.bn2", conv(f"{key}.conv2", y))
            x = (y + bypass(key, x, stride) if residual else y).relu()
    if preactivation:
        x = norm("bn", x).relu()
    return x.mean((2, 3)) @ state["linear.weight"].T + state["linear.bias"]


class TestForward:
    @pytest.mark.parametrize("norm", ["batch", "none"])
    @pytest.mark.parametrize("name", NAMES)
    def test_against_a_naive_network(self, name, norm, make_net):
        for shortcut in ("pad", "projection") if "resnet" in name else (None,):
            net = make_net(name, norm=norm, shortcut=shortcut, in_channels=2).double()
            # An odd size: the shortcut's subsampling must agree with the convolution's.
            x = torch.randn(3, 2, 9, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
            expected = naive_logits(
                net.state_dict(),
                x,
                residual=net.architecture.residual,
                preactivation=net.architecture.preactivation,
                shortcut=shortcut,
            )
            torch.testing.assert_close(net(x), expected, rtol=1e-10, atol=1e-12)

    @pytest.mark.parametrize("name", NAMES)
    def test_traceable_and_not_in_place(self, name, make_net):
        net = make_net(name)
        x = torch.randn(2, 1, 8, 8)
        before = x.clone()
        assert torch.equal(torch.fx.symbolic_trace(net)(x), net(x))
        assert torch.equal(x, before)
        block = net.layer1[0]
        features = torch.randn(2, 4, 8, 8)
        before = features.clone()
        block(features)
        assert torch.equal(features, before)

    def test_zero_channels_go_on_both_sides(self):
        x = torch.arange(1.0, 33).reshape(1, 2, 4, 4)
        y = Bypass(2, 3)(x)
        assert y.shape == (1, 5, 2, 2)
        assert torch.equal(y[:, 1:3], x[:, :, ::2, ::2])
        assert y[:, [0, 3, 4]].abs().sum() == 0


class TestRealCheckpoint:
    def test_count(self, real):
        state = torch.load(real / "akamaster-resnet20.th", map_location="cpu", weights_only=True)["state_dict"]
        net = build(parse_architecture("resnet20")).eval()
        net.load_state_dict({key.removeprefix("module."): value for key, value in state.items()})
        images = np.load(real / "cifar10-test-1000.npz")
        x = torch.from_numpy(images["x"]).permute(0, 3, 1, 2) / 255
        mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
        x = (x - torch.tensor(mean).reshape(3, 1, 1)) / torch.tensor(std).reshape(3, 1, 1)
        with torch.no_grad():
            predicted = torch.cat([net(batch).argmax(1) for batch in x.split(250)])
        assert (predicted == torch.from_numpy(images["y"])).sum() == 915
