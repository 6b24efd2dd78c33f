import pytest
import torch
from torch import fx, nn

from resprobe.folding import fold
from resprobe.structure.tracing import private_copy, trace
from resprobe.units import find

IMAGES = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def as_graph(model):
    traced = trace(private_copy(model))
    return fx.GraphModule(traced.root, traced.graph)


def num_norms(model):
    return sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())


@pytest.mark.parametrize(("name", "left"), [("resnet20", 0), ("plain20", 0), ("preresnet20", 10), ("preplain20", 0)])
def test_same_function_with_fewer_normalisations(make_net, name, left):
    net = make_net(name).double()
    folded = fold(as_graph(net))
    # in a pre-activation residual net the normalisations that follow an addition stay
    assert num_norms(folded) == left
    torch.testing.assert_close(folded(IMAGES), net(IMAGES), rtol=1e-12, atol=1e-12)


def test_original_is_left_alone(make_net):
    net = make_net()
    graph = as_graph(net)
    fold(graph)
    assert num_norms(graph) == num_norms(net)


@pytest.mark.parametrize("case", ["read twice", "no statistics", "parametrised"])
def test_what_cannot_be_folded_is_kept(case):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 3, bias=False)
            self.norm = nn.BatchNorm2d(2, track_running_stats=case != "no statistics")

        def forward(self, x):
            y = self.conv(x)
            return self.norm(y) + y if case == "read twice" else self.norm(y)

    net = Pair().double().eval()
    if case == "parametrised":
        nn.utils.parametrizations.weight_norm(net.conv)
    folded = fold(as_graph(net))
    assert num_norms(folded) == 1
    torch.testing.assert_close(folded(IMAGES), net(IMAGES))


class Doubling(nn.BatchNorm2d):
    def forward(self, x):
        # control flow that torch.fx can't follow: the module stays one operation
        return 2 * super().forward(x) if x.abs().max() > 0 else x


@pytest.mark.parametrize("case", ["norm of a subclass", "assigned norm", "assigned convolution"])
def test_what_computes_something_else_is_kept(case):
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).double().eval()
    conv, norm = net
    if case == "norm of a subclass":
        net[1] = Doubling(2).double().eval()
    elif case == "assigned norm":
        norm.forward = lambda x: 2 * x
    else:
        conv.forward = lambda x: x.repeat(1, 2, 1, 1)
    folded = fold(as_graph(net))
    assert num_norms(folded) == 1
    torch.testing.assert_close(folded(IMAGES), net(IMAGES))


def test_other_modules_pass_through():
    module = nn.Identity()
    assert fold(module) is module


def test_segments_fold_piece_by_piece(make_net):
    net = make_net("resnet20", shortcut="projection").double()
    folded = find(net, IMAGES).map(fold)
    torch.testing.assert_close(folded.forward(IMAGES), net(IMAGES), rtol=1e-12, atol=1e-12)
