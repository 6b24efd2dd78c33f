import math

import pytest
import torch
from torch import nn

from resprobe.errors import ResprobeError
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


class TestOtherInitialisations:
    @pytest.mark.parametrize(
        ("init", "variance"),
        [
            ("xavier", lambda fan_in, fan_out: 2 / (fan_in + fan_out)),
            ("lecun", lambda fan_in, fan_out: 1 / fan_in),
        ],
    )
    def test_variance(self, init, variance):
        net = build(parse_architecture("resnet20", norm="none"), seed=0, init=init)
        for module in net.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                out_channels, in_channels, *kernel = module.weight.shape
                area = math.prod(kernel)
                expected = math.sqrt(variance(in_channels * area, out_channels * area))
                tolerance = 5 / math.sqrt(2 * module.weight.numel())
                assert module.weight.std().item() == pytest.approx(expected, rel=tolerance)
                assert module.bias.abs().max() == 0

    def test_orthogonal(self):
        net = build(parse_architecture("plain8"), seed=0, init="orthogonal")
        for module in net.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                kernel = module.weight.detach().flatten(1)
                product = kernel @ kernel.T if kernel.shape[0] <= kernel.shape[1] else kernel.T @ kernel
                torch.testing.assert_close(product, torch.eye(len(product)), atol=1e-5, rtol=0)

    @pytest.mark.parametrize("norm", ["batch", "none"])
    @pytest.mark.parametrize("name", ["plain20", "resnet20"])
    def test_lsuv_gives_every_layer_unit_variance(self, name, norm):
        images = torch.randn(20, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 3 + 1
        architecture = parse_architecture(name, in_channels=1, width=8, norm=norm)
        net = build(architecture, seed=0, init="lsuv", images=images)
        variances = []
        for module in net.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.register_forward_hook(
                    lambda _, inputs, output: variances.append(output.var(correction=0).item())
                )
            if isinstance(module, nn.BatchNorm2d):
                assert module.num_batches_tracked == 0
                assert (module.running_var == 1).all()
        with torch.no_grad():
            net(images)
        assert len(variances) == 20
        assert max(abs(variance - 1) for variance in variances) < 0.02
        assert states_equal(
            build(architecture, seed=0, init="lsuv", images=images),
            build(architecture, seed=0, init="lsuv", images=images),
        )

    def test_only_he_scales_the_branches(self):
        residual, plain = (
            build(parse_architecture(name, norm="none"), seed=0, init="lecun") for name in ("resnet20", "plain20")
        )
        assert torch.equal(residual.layer2[1].conv2.weight, plain.layer2[1].conv2.weight)

    def test_errors(self):
        architecture = parse_architecture("resnet8")
        with pytest.raises(
            ResprobeError, match="init: expected one of he, xavier, lecun, orthogonal, lsuv, got 'kaiming'"
        ):
            build(architecture, init="kaiming")
        with pytest.raises(ResprobeError, match="expected images= with it, got none"):
            build(architecture, init="lsuv")
        with pytest.raises(ResprobeError, match="expected outputs of layer conv1 that vary, got variance 0"):
            build(architecture, init="lsuv", images=torch.zeros(4, 3, 8, 8))
