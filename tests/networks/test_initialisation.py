import math

import pytest
import torch
from torch import nn

from resprobe.networks import build, parse_architecture


def states_equal(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


class TestSeed:
    def test_the_seed_decides(self):
        architecture = parse_architecture("resnet8", width=4)
        assert states_equal(build(architecture, seed=1), build(architecture, seed=1))
        assert not states_equal(build(architecture, seed=1), build(architecture, seed=2))
        assert not states_equal(build(architecture), build(architecture))

    @pytest.mark.parametrize("seed", [0, None])
    def test_global_state_is_untouched(self, seed):
        before = torch.get_rng_state()
        build(parse_architecture("resnet8", width=4), seed=seed)
        assert torch.equal(torch.get_rng_state(), before)


class TestScales:
    def test_he_normal(self):
        net = build(parse_architecture("resnet20"), seed=0)
        for module in net.modules():
            if isinstance(module, nn.Conv2d):
                fan_in = module.in_channels * 9
                # The standard error of a standard deviation of n normal draws is std / sqrt(2 n).
                tolerance = 5 / math.sqrt(2 * module.weight.numel())
                assert module.weight.std().item() == pytest.approx(math.sqrt(2 / fan_in), rel=tolerance)
        assert net.linear.weight.abs().max() <= 1 / 8
        assert net.linear.bias.abs().max() == 0

    def test_normalisations_start_as_the_identity(self):
        for module in build(parse_architecture("preresnet8"), seed=0).modules():
            if isinstance(module, nn.BatchNorm2d):
                assert (module.weight == 1).all()
                assert (module.bias == 0).all()
                assert (module.running_mean == 0).all()
                assert (module.running_var == 1).all()

    def test_only_residual_nets_without_normalisation_are_scaled(self):
        residual, plain = (build(parse_architecture(name, norm="none"), seed=0) for name in ("resnet20", "plain20"))
        assert torch.equal(residual.layer2[1].conv1.weight, plain.layer2[1].conv1.weight)
        assert torch.equal(residual.layer2[1].conv2.weight, plain.layer2[1].conv2.weight / math.sqrt(9))


class TestSignalAtDepth:
    @pytest.mark.parametrize("name", ["resnet110", "preresnet110"])
    def test_bounded_without_normalisation(self, name):
        net = build(parse_architecture(name, norm="none"), seed=0)
        sizes = []
        for block in (*net.layer1, *net.layer2, *net.layer3):
            block.register_forward_hook(lambda _, inputs, output: sizes.append(output.square().mean().item()))
        with torch.no_grad():
            net(torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0)))
        assert len(sizes) == 54
        # (1 + 1/54)^54 is at most e in expectation; unscaled branches give about 2^54 = 2e16.
        assert max(sizes) < 2 * math.e * sizes[0]
        assert min(sizes) > sizes[0] / 10
