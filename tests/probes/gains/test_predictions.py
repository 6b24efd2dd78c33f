import math

import numpy as np
import pytest
import torch
from torch import nn

import resprobe
from resprobe.errors import ResprobeError
from resprobe.probes.gains import predictions as gain_predictions
from resprobe.probes.gains.predictions import mean_taps, predicted_gains, relative_gradients


@pytest.mark.parametrize(("side", "stride"), [(8, 1), (8, 2), (7, 2), (2, 1), (1, 1)])
def test_taps_are_those_of_a_padded_convolution(side, stride):
    kernel = torch.ones(1, 1, 3, 3)
    counted = nn.functional.conv2d(torch.ones(1, 1, side, side), kernel, padding=1, stride=stride)
    assert mean_taps(side, stride) == pytest.approx(counted.mean().item())


@pytest.mark.parametrize("init", ["he", "xavier", "lecun", "orthogonal"])
@pytest.mark.parametrize(("channels", "out", "stride"), [(16, 16, 1), (16, 32, 2)])
def test_spread_is_the_squared_gain_of_a_drawn_layer(init, channels, out, stride):
    from resprobe.networks.initialisation import initialise

    layer = nn.Conv2d(channels, out, 3, padding=1, stride=stride, bias=False)
    initialise(layer, generator=torch.Generator().manual_seed(0), init=init)
    x = torch.zeros(20, channels, 8, 8, requires_grad=True)
    y = layer(x)
    gradient = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    (back,) = torch.autograd.grad(y, x, gradient)
    measured = (back**2).sum() / (gradient**2).sum()
    assert gain_predictions._spread(channels, out, 8, stride, init) == pytest.approx(measured.item(), rel=0.06)


@pytest.mark.parametrize(
    ("name", "norm", "init"),
    [
        ("plain20", "none", "he"),
        ("plain20", "none", "lecun"),
        ("plain20", "none", "lsuv"),
        ("plain20", "batch", "he"),
        ("resnet20", "none", "he"),
        ("resnet20", "none", "xavier"),
        ("resnet20", "batch", "orthogonal"),
    ],
)
def test_measured_gradients_are_near(name, norm, init):
    data = resprobe.open_data("digits", num_images=60)
    architecture = resprobe.parse_architecture(name, in_channels=1, norm=norm)
    net = resprobe.build(architecture, seed=0, init=init, images=next(iter(data))[0]).eval()
    by = "block" if name.startswith("plain") else None
    measured = resprobe.gradients(net, data, bn_mode="batch", by=by).activation_grad_norm.values
    expected = relative_gradients(predicted_gains(architecture, init, 8))
    per_unit = (measured[0] / measured[-1] / expected[0]) ** (1 / 8)
    # widths of 16 to 64, maps of 2x2 and one draw: an error of 2 in a unit's squared gain would be 1.4 or 0.7
    assert 0.88 < per_unit < 1.12
    assert len(expected) == len(measured)


def test_normalised_networks():
    plain = resprobe.parse_architecture("plain56")
    assert predicted_gains(plain, "he", 8) == pytest.approx(math.pi / (math.pi - 1))
    # residual: the growth slows down with depth, and is far below the plain one's
    gains = {depth: predicted_gains(resprobe.parse_architecture(f"resnet{depth}"), "he", 32) for depth in (56, 110)}
    firsts = {depth: relative_gradients(values)[0] for depth, values in gains.items()}
    assert 1 < firsts[56] < firsts[110] < firsts[56] ** 2 / 4
    assert gains[110][0] > gains[110][10] > 1
    np.testing.assert_array_equal(gains[56], predicted_gains(resprobe.parse_architecture("resnet56"), "lecun", 32))


def test_relative_gradients():
    np.testing.assert_allclose(relative_gradients(np.array([7.0, 2.0, 5.0])), [10.0, 5.0, 1.0])


def test_refused():
    with pytest.raises(ResprobeError, match="expected a post-activation network, got preresnet20"):
        predicted_gains(resprobe.parse_architecture("preresnet20"), "he", 8)
    with pytest.raises(ResprobeError, match="init: expected one of"):
        predicted_gains(resprobe.parse_architecture("resnet20"), "magic", 8)
