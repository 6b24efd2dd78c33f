import pytest
import torch
import torch.nn.functional as F
from torch import nn

from resprobe.errors import ResprobeError
from resprobe.units import find

EXAMPLE = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    """A residual block written the way people write them, in place."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.conv2(self.relu(self.conv1(x)))
        out += x
        return self.relu(out)


class Classifier(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(4, 10)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def names(segments):
    return [unit.name for unit in segments.units]


class TestResidualUnits:
    @pytest.mark.parametrize("name", ["resnet20", "preresnet20"])
    @pytest.mark.parametrize("shortcut", ["pad", "projection"])
    @pytest.mark.parametrize("norm", ["batch", "none"])
    def test_own_networks(self, make_net, name, shortcut, norm):
        net = make_net(name, shortcut=shortcut, norm=norm)
        units = find(net, EXAMPLE).units
        assert [unit.name for unit in units] == [f"layer{s}.{i}" for s in (1, 2, 3) for i in range(3)]
        assert [unit.shortcut for unit in units] == (["identity"] * 3 + [shortcut, "identity", "identity"] * 2)
        assert [unit.stage for unit in units] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
        assert [unit.depth for unit in units] == list(range(1, 10))
        assert {(unit.kind, unit.bypass, unit.branch_layers, unit.status) for unit in units} == {
            ("residual", "shortcut", 2, "ok")
        }
        assert units[3].input_shape == (4, 8, 8)
        assert units[3].output_shape == (8, 4, 4)
        blocks = [block for stage in (net.layer1, net.layer2, net.layer3) for block in stage]
        assert [unit.num_params for unit in units] == [sum(p.numel() for p in b.parameters()) for b in blocks]

    def test_segments_give_the_logits(self, make_net):
        net = make_net("preresnet20", shortcut="projection")
        with torch.inference_mode():
            assert torch.equal(find(net, EXAMPLE).forward(EXAMPLE), net(EXAMPLE))

    def test_hand_set_units_read_12_4_3_1(self, scalar_net):
        first, second = find(scalar_net, torch.ones(2, 1)).units
        one = torch.ones(1, 1)
        assert first.forward(second.forward(one)).item() == 12
        assert second.forward(first.forward_deleted(one)).item() == 4
        assert second.forward_deleted(first.forward(one)).item() == 3
        assert second.forward_deleted(first.forward_deleted(one)).item() == 1

    def test_in_place_operations_are_harmless(self):
        net = Classifier(Block(4), Block(4)).eval()
        segments = find(net, EXAMPLE)
        assert names(segments) == ["blocks.0", "blocks.1"]
        x = torch.randn(2, 4, 8, 8)
        before = x.clone()
        with torch.inference_mode():
            for unit in segments.units:
                torch.testing.assert_close(unit.forward_deleted(x), F.relu(before))
                unit.forward(x)
        assert torch.equal(x, before)

    def test_activation_in_place_on_the_fork_also_changes_the_shortcut(self):
        class InPlaceFork(Block):
            def forward(self, x):
                return self.conv2(self.relu(self.conv1(self.relu(x)))) + x

        net = Classifier(InPlaceFork(4)).eval()
        (unit,) = find(net, EXAMPLE).units
        x = torch.randn(2, 4, 8, 8)
        with torch.inference_mode():
            torch.testing.assert_close(unit.forward_deleted(x.clone()), F.relu(x))

    def test_weightier_side_is_the_branch(self):
        class Projected(Block):
            def __init__(self, channels):
                super().__init__(channels)
                self.project = nn.Conv2d(channels, channels, 1)

            def forward(self, x):
                return self.project(x) + self.conv2(self.relu(self.conv1(x)))

        (unit,) = find(Classifier(Projected(4)).eval(), EXAMPLE).units
        assert (unit.shortcut, unit.branch_layers) == ("projection", 2)

    def test_equal_sides_are_not_guessed(self):
        class Twin(Block):
            def forward(self, x):
                return self.conv1(x) + self.conv2(x)

        (unit,) = find(Classifier(Twin(4)).eval(), EXAMPLE).units
        assert unit.status == "both sides of the addition have the same layers, so neither is the shortcut"

    def test_addition_of_a_constant_is_no_unit(self):
        class Shifted(Block):
            def __init__(self, channels):
                super().__init__(channels)
                self.shift = nn.Parameter(torch.ones(1, channels, 1, 1))

            def forward(self, x):
                return super().forward(x + self.shift)

        assert names(find(Classifier(Shifted(4), Block(4)).eval(), EXAMPLE)) == ["blocks.0", "blocks.1"]

    def test_units_without_a_module_of_their_own_are_named_by_their_branch(self):
        class Flat(nn.Module):
            def __init__(self):
                super().__init__()
                self.stem = nn.Linear(64, 4)
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x):
                x = self.stem(x.flatten(1))
                x = x + self.a(x)
                return x + self.b(x)

        assert names(find(Flat().eval(), EXAMPLE)) == ["a", "b"]


class TestPlainLayers:
    def test_by_layer(self, make_net):
        units = find(make_net("plain20"), EXAMPLE).units
        assert [unit.name for unit in units][:3] == ["layer1.0.conv1", "layer1.0.conv2", "layer1.1.conv1"]
        assert len(units) == 18
        assert [unit.bypass for unit in units].count("pad") == 2
        assert {unit.kind for unit in units} == {"plain"}
        assert {unit.shortcut for unit in units} == {"none"}

    @pytest.mark.parametrize("name", ["plain20", "preplain20"])
    def test_by_block(self, make_net, name):
        units = find(make_net(name), EXAMPLE, by="block").units
        assert [unit.name for unit in units] == [f"layer{s}.{i}" for s in (1, 2, 3) for i in range(3)]
        assert {unit.branch_layers for unit in units} == {2}

    def test_normalisation_and_activation_belong_to_their_layer(self, make_net):
        net = make_net("plain20")
        unit = find(net, EXAMPLE).units[0]
        x = torch.randn(2, 4, 8, 8).relu()
        block = net.layer1[0]
        with torch.inference_mode():
            torch.testing.assert_close(unit.forward(x), F.relu(block.bn1(block.conv1(x))))
            assert torch.equal(unit.forward_deleted(x), x)

    def test_preactivation_layer_starts_with_its_normalisation(self, make_net):
        net = make_net("preplain20")
        unit = find(net, EXAMPLE).units[1]
        x = torch.randn(2, 4, 8, 8)
        block = net.layer1[0]
        with torch.inference_mode():
            torch.testing.assert_close(unit.forward(x), block.conv2(F.relu(block.bn2(x))))
            assert torch.equal(unit.forward_deleted(x), x)

    def test_layer_without_a_bypass_says_so(self):
        net = nn.Sequential(
            *(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU()),
            *(nn.Conv2d(4, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10)),
        ).eval()
        narrower, fewer = find(net, EXAMPLE).units
        assert narrower.status == "no bypass leads from shape (4, 8, 8) to (4, 6, 6)"
        assert fewer.status == "no bypass leads from 4 to 2 channels"


class TestErrors:
    def test_by_on_a_residual_net(self, make_net):
        with pytest.raises(ResprobeError, match="expected a net without shortcuts, got 9 residual units"):
            find(make_net(), EXAMPLE, by="layer")

    def test_unknown_by(self, make_net):
        with pytest.raises(ResprobeError, match="expected layer or block, got 'unit'"):
            find(make_net("plain20"), EXAMPLE, by="unit")

    def test_no_blocks(self):
        net = nn.Sequential(nn.Flatten(), *(nn.Linear(64, 64) for _ in range(3)), nn.Linear(64, 10))
        with pytest.raises(ResprobeError, match="expected modules that hold several layers, got none"):
            find(net, EXAMPLE, by="block")

    def test_nothing_to_delete(self):
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        with pytest.raises(ResprobeError, match="expected residual units or plain layers .* got none"):
            find(net, EXAMPLE)

    def test_wrong_images(self, make_net):
        with pytest.raises(ResprobeError, match=r"expected to run on images of shape \(3, 8, 8\), got"):
            find(make_net(), torch.zeros(2, 3, 8, 8))

    def test_control_flow(self):
        class Moody(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(64, 10)

            def forward(self, x):
                return self.linear(x.flatten(1)) if x.sum() > 0 else self.linear(-x.flatten(1))

        with pytest.raises(ResprobeError, match="expected a forward pass that torch.fx can trace, got TraceError"):
            find(Moody(), EXAMPLE)

    def test_output_that_is_no_logits(self):
        with pytest.raises(ResprobeError, match=r"expected logits \(N, classes\) as output, got \(2, 1, 8, 8\)"):
            find(nn.Conv2d(1, 1, 3, padding=1), EXAMPLE)

    def test_hooks_that_change_the_output(self, make_net):
        net = make_net()
        net.layer2.register_forward_hook(lambda module, inputs, output: 2 * output)
        with pytest.raises(ResprobeError, match="hooks that change its output must be removed"):
            find(net, EXAMPLE)

    def test_untraceable_module_that_writes_into_its_input(self):
        class Halving(nn.Module):
            def forward(self, x):
                return x.mul_(0.5) if x.numel() and bool(x.max() > -100) else x

        class Branch(nn.Module):
            def __init__(self):
                super().__init__()
                self.halving, self.conv = Halving(), nn.Conv2d(4, 4, 1)

            def forward(self, x):
                return self.conv(self.halving(x)) + x

        # the model's shortcut sees what the branch has written, the pieces of it don't
        with pytest.raises(ResprobeError, match="expected segments that give the model's own logits"):
            find(Classifier(Branch(), Branch()), EXAMPLE)
