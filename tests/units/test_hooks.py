import pytest
import torch
import torch.nn.functional as F
from torch import nn

import resprobe
from resprobe.errors import ResprobeError

IMAGES = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def num_hooks(model):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def run_without(net, gone):
    """Run one of our post-activation nets by hand, without the branches (or plain blocks) named in `gone`."""
    with torch.inference_mode():
        x = F.relu(net.bn1(net.conv1(IMAGES)))
        for stage in ("layer1", "layer2", "layer3"):
            for index, block in enumerate(getattr(net, stage)):
                if f"{stage}.{index}" not in gone:
                    x = block(x)
                elif block.residual:
                    x = F.relu(block.shortcut(x))
                elif block.conv1.stride == (2, 2):
                    x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, x.shape[1] // 2, x.shape[1] // 2))
        return net.linear(x.mean((2, 3)))


class FunctionalBlock(nn.Module):
    """A residual unit whose branch ends in no module."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.weight = nn.Parameter(torch.rand(8, 8))

    def forward(self, x):
        x = self.norm(x)
        return torch.sigmoid(x + F.linear(x, self.weight).cos())


class TestReroutedModules:
    @pytest.fixture
    def net(self):
        torch.manual_seed(0)
        blocks = [FunctionalBlock(), FunctionalBlock()]
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), *blocks, nn.Linear(8, 4))
        net(IMAGES)
        return net.eval()

    def test_equals_a_forward_pass_by_hand(self, net):
        with torch.inference_mode(), resprobe.deleted(net, ["2"]):
            x = torch.sigmoid(net[2].norm(net[1](IMAGES.flatten(1))))
            torch.testing.assert_close(net(IMAGES), net[4](net[3](x)))
            with resprobe.deleted(net, ["3"]):
                torch.testing.assert_close(net(IMAGES), net[4](torch.sigmoid(net[3].norm(x))))
        assert num_hooks(net) == 0

    def test_gradients_reach_the_models_own_parameters(self, net):
        with resprobe.deleted(net, ["2"]):
            net(IMAGES).sum().backward()
        assert net[2].weight.grad is None
        assert net[2].norm.weight.grad.abs().max() > 0

    def test_hooks_go_after_an_exception(self, net):
        with pytest.raises(RuntimeError, match="shapes"), resprobe.deleted(net, ["2", "3"]):
            net(IMAGES[:, :, 1:])
        assert num_hooks(net) == 0


class TestDeleted:
    @pytest.mark.parametrize("name", ["resnet20", "plain20"])
    @pytest.mark.parametrize("gone", [[], ["layer1.2"], ["layer2.0"], ["layer1.0", "layer3.0", "layer3.2"]])
    def test_equals_a_forward_pass_by_hand(self, make_net, name, gone):
        net = make_net(name)
        with resprobe.deleted(net, gone) as same, torch.inference_mode():
            logits = net(IMAGES)
        assert same is net
        torch.testing.assert_close(logits, run_without(net, gone))

    def test_plain_layer(self, make_net):
        net = make_net("plain20")
        with resprobe.deleted(net, ["layer2.0.conv1"]), torch.inference_mode():
            got = net.layer2[0](x := torch.rand(2, 4, 8, 8))
            padded = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2))
            block = net.layer2[0]
        with torch.inference_mode():
            torch.testing.assert_close(got, F.relu(block.bn2(block.conv2(padded))))

    def test_empty_deletion_is_the_model_bit_for_bit(self, make_net):
        net = make_net()
        with torch.inference_mode(), resprobe.deleted(net, []):
            assert torch.equal(net(IMAGES), run_without(net, []))

    def test_gradients_flow_through_what_is_left(self, make_net):
        net = make_net()
        with resprobe.deleted(net, ["layer1.1"]):
            net(IMAGES).sum().backward()
        assert net.layer1[1].conv1.weight.grad is None
        assert net.layer1[0].conv1.weight.grad.abs().max() > 0

    def test_contexts_nest(self, make_net):
        net = make_net()
        with torch.inference_mode(), resprobe.deleted(net, ["layer1.1"]):
            with resprobe.deleted(net, ["layer3.1"]):
                torch.testing.assert_close(net(IMAGES), run_without(net, ["layer1.1", "layer3.1"]))
            torch.testing.assert_close(net(IMAGES), run_without(net, ["layer1.1"]))

    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
    def test_hooks_go_after_an_exception(self, make_net, error):
        net = make_net()
        seen = []

        def interrupted(*args):
            seen.append(num_hooks(net))
            raise error("stop")

        with pytest.raises(error, match="stop"), resprobe.deleted(net, ["layer1.1", "layer2.1"]):
            interrupted()
        assert seen == [2]
        assert num_hooks(net) == 0

    def test_hooks_of_earlier_names_go_when_a_later_one_is_wrong(self, make_net):
        net = make_net()
        with (
            pytest.raises(ResprobeError, match=r"got 'layer1.9'; did you mean layer1.2 or layer1.1"),
            resprobe.deleted(net, ["layer1.1", "layer1.9"]),
        ):
            pass
        assert num_hooks(net) == 0

    def test_foreign_hooks_stay(self, make_net):
        net = make_net()
        seen = []
        net.layer1.register_forward_hook(lambda module, inputs, output: seen.append(type(output)))
        with resprobe.deleted(net, ["layer1.1"]), torch.inference_mode():
            net(IMAGES)
        assert num_hooks(net) == 1
        assert seen == [torch.Tensor]

    def test_layer_whose_activation_hooks_cannot_reach(self, make_net):
        with (
            pytest.raises(ResprobeError, match="its ReLU is a function, not a module, and its input can be neg"),
            resprobe.deleted(make_net("preplain20"), ["layer1.1.conv1"]),
        ):
            pass

    def test_bypass_of_an_activation_in_place_gives_what_came_in(self):
        first, second = nn.Linear(64, 8), nn.Linear(8, 8)
        net = nn.Sequential(nn.Flatten(), first, second, nn.ReLU(inplace=True), nn.Linear(8, 4))
        with torch.inference_mode(), resprobe.deleted(net, ["2"]):
            torch.testing.assert_close(net(IMAGES), net[4](first(IMAGES.flatten(1))))

    def test_layer_without_a_bypass(self):
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
        with (
            pytest.raises(ResprobeError, match="no bypass leads from 8 to 4 features; leave it out"),
            resprobe.deleted(net, ["3"]),
        ):
            pass

    def test_text_is_no_list_of_names(self, make_net):
        with (
            pytest.raises(ResprobeError, match=r"expected a list of names, got the text 'layer1.1'"),
            resprobe.deleted(make_net(), "layer1.1"),
        ):
            pass
