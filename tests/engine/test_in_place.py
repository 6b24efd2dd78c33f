import operator

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from resprobe.engine.in_place import FusedSegment, add_into, overwrite, work_in_place
from resprobe.normalisation.folding import fold
from resprobe.units import find

IMAGES = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self, compute):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1)
        self.relu = nn.ReLU()
        self.compute = compute

    def forward(self, x):
        return self.compute(self, x)


COMPUTATIONS = {
    "relu": (lambda net, x: F.relu(net.conv(x)), 1),
    "relu module": (lambda net, x: net.relu(net.conv(x)), 1),
    "relu in place": (lambda net, x: F.relu(net.conv(x), inplace=True) + 1, 1),
    "sum": (lambda net, x: F.relu(net.conv(x) + x), 2),
    "chain": (lambda net, x: F.relu(F.relu(net.conv(x)) + x) + x, 4),
    "smaller first operand": (lambda net, x: net.conv(x).mean((2, 3), keepdim=True) + x, 0),
    "sum of another shape": (lambda net, x: F.linear(net.conv(x)[:, :1, :, :1], torch.ones(1, 1)) + x, 0),
    "input": (lambda net, x: F.relu(x), 0),
    "sum with input first": (lambda net, x: x + net.conv(x), 0),
    "view": (lambda net, x: F.relu(net.conv(x).flatten(1)), 0),
}


def num_in_place(module):
    return sum(node.target in (torch.relu_, add_into) for node in module.graph.nodes)


@pytest.mark.parametrize("name", list(COMPUTATIONS))
def test_same_values(name):
    compute, expected = COMPUTATIONS[name]
    net = Net(compute)
    graph = fx.symbolic_trace(net)
    changed = overwrite(graph)
    images = IMAGES.clone()
    with torch.inference_mode():
        assert torch.equal(changed(images), net(IMAGES))
    assert torch.equal(images, IMAGES)
    assert num_in_place(changed) == expected
    assert num_in_place(graph) == 0


def test_what_is_read_again_stays():
    def compute(net, x):
        y = net.conv(x)
        return F.relu(y) - y

    net = Net(compute)
    changed = overwrite(fx.symbolic_trace(net))
    assert torch.equal(changed(IMAGES), net(IMAGES))


def test_hooked_output_stays():
    net = Net(lambda net, x: F.relu(net.conv(x)))
    seen = []
    net.conv.register_forward_hook(lambda module, inputs, output: seen.append(output))
    overwrite(fx.symbolic_trace(net))(IMAGES)
    assert (seen[0] < 0).any()


class GivesItsInput(nn.Conv2d):
    def forward(self, x):
        return x


@pytest.mark.parametrize("how", ["subclass", "assigned"])
def test_convolution_that_gives_its_own_input(how):
    net = Net(lambda net, x: F.relu(net.conv(x)))
    if how == "subclass":
        net.conv = GivesItsInput(1, 2, 3)
    else:
        net.conv.forward = lambda x: x
    images = IMAGES.clone()
    leaves = type("Leaves", (fx.Tracer,), {"is_leaf_module": lambda *_: True})()
    changed = overwrite(fx.GraphModule(net, leaves.trace(net)))
    assert num_in_place(changed) == 0
    changed(images)
    assert torch.equal(images, IMAGES)


def test_sum_of_another_shape_is_new():
    small, large = torch.zeros(2, 1), torch.ones(2, 3)
    assert add_into(small, large).shape == (2, 3)
    assert not small.any()


@pytest.mark.parametrize("name", ["resnet20", "preresnet20", "plain20"])
def test_units_run_in_place(make_net, name):
    net = make_net(name)
    segments = find(net, IMAGES).map(fold)
    fused = work_in_place(segments)
    with torch.inference_mode():
        x = segments.stem(IMAGES)
        for plain, unit in zip(segments.units, fused.units, strict=True):
            before = x.clone()
            assert isinstance(unit, FusedSegment)
            assert num_in_place(unit.whole) > 0
            assert torch.equal(unit.forward(x), plain.forward(x))
            assert torch.equal(unit.forward_deleted(x), plain.forward_deleted(x))
            assert torch.equal(x, before)
            x = plain.forward(x)
        assert torch.equal(fused.head(x), segments.head(x))


def test_in_place_addition_of_an_input_is_kept():
    def compute(net, x):
        return operator.iadd(net.conv(x), x)

    net = Net(compute)
    changed = overwrite(fx.symbolic_trace(net))
    assert torch.equal(changed(IMAGES), net(IMAGES))
