"""Forward passes of other people: optional arguments, control flow, frozen normalisation, dropout, dead code."""

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

import resprobe
from resprobe.errors import ResprobeError
from resprobe.units import find
from resprobe.units.structure.tracing import private_copy, trace

EXAMPLE = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(6, 6)

    def forward(self, x):
        return torch.relu(x + self.f(x))


class Moody(nn.Module):
    """A module with control flow that depends on the values of its input."""

    def __init__(self):
        super().__init__()
        self.f = nn.Linear(6, 6)

    def forward(self, x):
        return self.f(x) if x.sum() > 0 else -self.f(x)


class Net(nn.Module):
    def __init__(self, middle=None):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.first, self.second = nn.Linear(6, 6), Block(), Block()
        self.middle = nn.Identity() if middle is None else middle
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        return self.head(self.second(self.middle(self.first(self.stem(x)))))


def names(model, example=EXAMPLE):
    return [unit.name for unit in find(model, example).units]


class TestArguments:
    def test_optional_ones_keep_their_defaults(self):
        class Masked(Net):
            def forward(self, x, mask=None, *, scale: float = 2.0, sizes=(), return_features=False):
                x = super().forward(x)
                if mask is not None:
                    x = x * mask
                return {"features": x} if return_features else scale * x

        net = Masked()
        assert names(net) == ["first", "second"]
        with torch.inference_mode():
            torch.testing.assert_close(find(net, EXAMPLE).forward(EXAMPLE), net(EXAMPLE))

    def test_forward_of_one_instance(self):
        net = Net()
        net.forward = lambda x: net.head(net.first(net.stem(x)))
        with torch.inference_mode():
            expected = net(EXAMPLE)
        with pytest.raises(ResprobeError, match="module is not installed as a submodule"):
            find(net, EXAMPLE)
        with torch.inference_mode():
            assert torch.equal(net(EXAMPLE), expected)

    @pytest.mark.parametrize("output", [lambda x: {"logits": x}, lambda x: (x, x)], ids=["dict", "tuple"])
    def test_output_that_is_no_tensor(self, output):
        class Wrapped(Net):
            def forward(self, x):
                return output(super().forward(x))

        with pytest.raises(ResprobeError, match=r"expected logits \(N, classes\) as output, got (dict|tuple); wrap"):
            find(Wrapped(), EXAMPLE)

    def test_class_is_itself_again(self):
        duplicate = private_copy(Net())
        trace(duplicate)
        assert type(duplicate) is Net


class TestControlFlow:
    def test_inside_a_branch_is_harmless(self):
        net = Net()
        net.first.f = Moody()
        found = find(net, EXAMPLE)
        assert [unit.name for unit in found.units] == ["first", "second"]
        with torch.inference_mode(), resprobe.deleted(net, ["first"]):
            got = found.units[0].forward_deleted(found.stem(EXAMPLE))
            torch.testing.assert_close(found.head(found.units[1].forward(got)), net(EXAMPLE))

    def test_where_units_may_hide_is_refused(self):
        with pytest.raises(
            ResprobeError, match="expected modules that torch.fx can trace, got middle, which gives Trace"
        ):
            find(Net(Moody()), EXAMPLE)

    def test_in_the_model_itself(self):
        class Whole(Net):
            def forward(self, x):
                return super().forward(x if x.sum() > 0 else -x)

        with pytest.raises(
            ResprobeError, match="can trace, got TraceError: .* name the units with units= and shortcut="
        ):
            find(Whole(), EXAMPLE)

    def test_failed_attempt_leaves_nothing_behind(self):
        class HalfWay(nn.Module):
            def forward(self, x):
                y = torch.relu_(x)
                return y if x.sum() > 0 else -y

        net = Net()
        net.first.f = nn.Sequential(net.first.f, HalfWay())
        assert names(net) == ["first", "second"]


class TestModes:
    def test_dropout_and_normalisation_in_train_mode(self):
        net = Net(nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.9))).train()
        assert names(net) == ["first", "second"]
        assert net.training
        assert net.middle[0].num_batches_tracked == 0

    def test_functional_dropout(self):
        class Dropping(Block):
            def forward(self, x):
                return x + F.dropout(F.relu(self.f(x)), 0.5, self.training)

        net = Net(Dropping()).train()
        assert names(net) == ["first", "middle", "second"]
        with torch.inference_mode(), resprobe.deleted(net.eval(), ["middle"]):
            torch.testing.assert_close(net(EXAMPLE), net.head(net.second(net.first(net.stem(EXAMPLE)))))

    def test_frozen_normalisation(self):
        net = torchvision.models.resnet18(norm_layer=torchvision.ops.FrozenBatchNorm2d, num_classes=10)
        units = find(net, torch.randn(2, 3, 32, 32)).units
        assert [unit.name for unit in units] == [f"layer{s}.{i}" for s in (1, 2, 3, 4) for i in (0, 1)]
        assert {(unit.status, unit.hook_problem) for unit in units} == {("ok", "")}

    def test_stochastic_depth(self):
        class Dropping(Block):
            def __init__(self):
                super().__init__()
                self.drop = torchvision.ops.StochasticDepth(0.5, "row")

            def forward(self, x):
                return x + self.drop(self.f(x))

        net = Net(Dropping()).train()
        segments = find(net, EXAMPLE)
        assert {unit.hook_problem for unit in segments.units} == {""}
        with torch.inference_mode():
            torch.testing.assert_close(segments.forward(EXAMPLE), net.eval()(EXAMPLE))


class TestDeadCode:
    def test_auxiliary_head_is_ignored(self):
        class Auxiliary(Net):
            def __init__(self):
                super().__init__()
                self.auxiliary = nn.Linear(6, 2)

            def forward(self, x):
                x = self.first(self.stem(x))
                self.auxiliary(x)
                return self.head(self.second(x))

        assert names(Auxiliary()) == ["first", "second"]
