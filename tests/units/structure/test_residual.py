"""Residual units of every kind of shortcut, wherever they stand, written in the ways in which people write them."""

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import resprobe
from resprobe.errors import ResprobeError
from resprobe.units import Segments, WholeModel, find

EXAMPLE = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))


def layer(bias=True):
    return nn.Linear(6, 6, bias=bias)


class Net(nn.Module):
    """A stem, some blocks, a head."""

    def __init__(self, *blocks):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Linear(6, 6)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)))


class Sum(nn.Module):
    """A block whose forward is given as a function of itself and x."""

    def __init__(self, forward, **modules):
        super().__init__()
        self.written = forward
        for name, module in modules.items():
            setattr(self, name, module)
        self.weight = nn.Parameter(torch.rand(6) + 0.5)

    def forward(self, x):
        return self.written(self, x)


def assert_deletions_agree(net, remains, example=EXAMPLE):
    """Compare each unit's deletion through segments and through hooks with a function of the unit's input."""
    found = find(net, example)
    assert isinstance(found, Segments)
    for index, unit in enumerate(found.units):
        with torch.inference_mode():
            x = found.stem(example)
            for before in found.units[:index]:
                x = before.forward(x)
            expected = remains(net.blocks[index], x.clone())
            torch.testing.assert_close(unit.forward_deleted(x.clone()), expected)
            assert not torch.allclose(unit.forward(x.clone()), expected, atol=1e-3)
            for after in found.units[index + 1 :]:
                expected = after.forward(expected)
            expected = found.head(expected)
            with resprobe.deleted(net, [unit.name]):
                torch.testing.assert_close(net(example), expected)
    return found


IDENTITIES = {
    "operator": lambda s, x: x + s.f(x),
    "the other way round": lambda s, x: s.f(x) + x,
    "in place": lambda s, x: s.f(x).add_(x),
    "in place, operator": lambda s, x: operator.iadd(s.f(x), x),
    "torch.add": lambda s, x: torch.add(x, s.f(x)),
    "keyword": lambda s, x: torch.add(x, other=s.f(x)),
    "method": lambda s, x: x.add(s.f(x)),
    "alpha": lambda s, x: torch.add(x, s.f(x), alpha=0.5),
    "sum": lambda s, x: sum([x, s.f(x)]),
    "difference": lambda s, x: x - s.f(x),
    "three terms": lambda s, x: x + s.f(x) + s.g(x),
    "three terms, another order": lambda s, x: s.f(x) + (s.g(x) + x),
    "branch that is a sum of a sum": lambda s, x: x + ((h := s.f(x)) + s.g(h)),
    "functional activation at the end": lambda s, x: x + torch.tanh(s.f(x)),
    "layer scale": lambda s, x: x + s.weight * s.f(x),
    "scaled branch": lambda s, x: x + 0.1 * s.f(x),
    "squeeze and excitation": lambda s, x: x + s.f(x) * torch.sigmoid(s.g(x)),
    "Highway as a difference": lambda s, x: x + torch.sigmoid(s.g(x)) * (s.f(x) - x),
    "residual in residual": lambda s, x: x + (lambda h: h + s.g(torch.relu(h)))(s.f(x)),
    "functional linear map": lambda s, x: x + F.linear(x, s.f.weight),
    "residual in residual in residual": lambda s, x: x + (lambda h: h + s.g(h + s.f(h)))(s.f2(x)),
    "branches stacked": lambda s, x: x + torch.stack([s.f(x), s.g(x)]).sum(0),
    "branches concatenated": lambda s, x: x + torch.cat([s.f(x), s.g(x)], 1)[:, 3:9],
    "constant in between": lambda s, x: (x + s.f(x)) + s.weight - s.weight,
}


class TestShortcutKinds:
    @pytest.mark.parametrize("written", IDENTITIES.values(), ids=IDENTITIES)
    def test_identity(self, written):
        blocks = [Sum(written, f=layer(), g=layer(), f2=layer()) for _ in range(2)]
        found = assert_deletions_agree(Net(*blocks).eval(), lambda block, x: x)
        assert [(unit.name, unit.shortcut, unit.status) for unit in found.units] == [
            ("blocks.0", "identity", "ok"),
            ("blocks.1", "identity", "ok"),
        ]

    def test_scaled(self):
        net = Net(Sum(lambda s, x: 0.5 * x + s.f(x), f=layer()), Sum(lambda s, x: s.weight * x + s.f(x), f=layer()))
        found = assert_deletions_agree(net, lambda block, x: (0.5 if block is net.blocks[0] else block.weight) * x)
        assert [unit.shortcut for unit in found.units] == ["identity", "identity"]

    def test_scaled_by_alpha(self):
        net = Net(Sum(lambda s, x: torch.add(s.f(x), x, alpha=2), f=layer()))
        assert_deletions_agree(net, lambda block, x: 2 * x)

    def test_affine(self):
        net = Net(Sum(lambda s, x: (s.weight * x + 1) + s.f(x), f=layer()))
        found = assert_deletions_agree(net, lambda block, x: block.weight * x + 1)
        assert found.units[0].shortcut == "identity"

    def test_normalised(self):
        net = Net(Sum(lambda s, x: s.norm(x) + s.f(x) + s.g(s.f(x)), f=layer(), g=layer(), norm=nn.LayerNorm(6)))
        found = assert_deletions_agree(net.eval(), lambda block, x: block.norm(x))
        assert (found.units[0].shortcut, found.units[0].branch_layers) == ("identity", 3)

    def test_pooling_with_learned_scales(self):
        def written(s, x):
            return s.none(x) + s.weight * (s.pool(s.norm(x)) - s.norm(x))

        net = Net(Sum(written, none=nn.Identity(), norm=nn.LayerNorm(6), pool=nn.AvgPool1d(3, 1, 1)))
        (unit,) = assert_deletions_agree(net, lambda block, x: x).units
        assert (unit.shortcut, unit.branch_layers) == ("identity", 0)

    def test_projection(self):
        net = Net(Sum(lambda s, x: s.p(x) + s.g(torch.relu(s.f(x))), f=layer(), g=layer(), p=layer()))
        found = assert_deletions_agree(net, lambda block, x: block.p(x))
        assert (found.units[0].shortcut, found.units[0].branch_layers) == ("projection", 2)

    def test_doubled_shortcut(self):
        net = Net(Sum(lambda s, x: x + s.f(x) + x, f=layer()))
        assert_deletions_agree(net, lambda block, x: 2 * x)

    def test_several_weight_layers_on_each_side_are_not_guessed(self):
        net = Net(Sum(lambda s, x: s.p(s.f(x)) + s.g(s.f2(s.q(x))), **{n: layer() for n in ("f", "g", "p", "q", "f2")}))
        (unit,) = find(net, EXAMPLE).units
        assert unit.status == "each side of the addition has several weight layers in a row, so neither is the shortcut"
        with pytest.raises(ResprobeError, match="unit blocks.0: expected one that can be deleted"):
            resprobe.deleted(net, ["blocks.0"]).__enter__()

    @pytest.mark.parametrize("written", [lambda s, x: x + x.mean(), lambda s, x: x - x.mean(1, keepdim=True)])
    def test_sum_without_parameters_is_no_unit(self, written):
        net = Net(Sum(written), layer(), nn.ReLU(), Sum(lambda s, x: x + s.f(x), f=layer()))
        assert [unit.name for unit in find(net, EXAMPLE).units] == ["blocks.3"]

    def test_sum_without_parameters_leaves_a_plain_net_plain(self):
        def gelu(s, x):
            return 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.045 * x**3)))

        found = find(Net(layer(), Sum(gelu), layer(), Sum(gelu)), EXAMPLE)
        assert [(unit.name, unit.kind) for unit in found.units] == [("blocks.0", "plain"), ("blocks.2", "plain")]


HIGHWAYS = {
    "as printed": lambda s, x: (t := s.gate(x)) * s.f(x) + (1 - t) * x,
    "carry first": lambda s, x: x * (1 - (t := s.gate(x))) + s.f(x) * t,
    "torch.rsub": lambda s, x: (t := s.gate(x)) * s.f(x) + torch.rsub(t, 1) * x,
    "negated": lambda s, x: (t := s.gate(x)) * s.f(x) + (1.0 + -t) * x,
    "the gate carries": lambda s, x: (c := s.gate(x)) * x + (1 - c) * s.f(x),
    "functional gate": lambda s, x: (t := torch.sigmoid(s.g(x))) * s.f(x) + (1 - t) * x,
    "torch.mul": lambda s, x: torch.mul(t := s.gate(x), s.f(x)) + torch.mul(1 - t, x),
    "one number": lambda s, x: (t := torch.sigmoid(s.weight)) * s.f(x) + (1 - t) * x,
}


class TestGates:
    @pytest.mark.parametrize("written", HIGHWAYS.values(), ids=HIGHWAYS)
    def test_highway_deletion_carries_the_input(self, written):
        def block():
            return Sum(
                written, f=nn.Sequential(layer(), nn.ReLU()), g=layer(), gate=nn.Sequential(layer(), nn.Sigmoid())
            )

        found = assert_deletions_agree(Net(block(), block()), lambda block, x: x)
        assert [(unit.shortcut, unit.status) for unit in found.units] == [("gated", "ok")] * 2

    def test_highway_forward_is_the_model(self):
        net = Net(Sum(HIGHWAYS["as printed"], f=layer(), gate=nn.Sequential(layer(), nn.Sigmoid())))
        with torch.inference_mode():
            torch.testing.assert_close(find(net, EXAMPLE).forward(EXAMPLE), net(EXAMPLE))

    def test_gate_of_its_own_stays(self):
        def written(s, x):
            return s.gate(x) * s.f(x) + torch.sigmoid(s.carry(x)) * x

        net = Net(Sum(written, f=layer(), gate=nn.Sequential(layer(), nn.Sigmoid()), carry=layer()))
        found = assert_deletions_agree(net, lambda block, x: torch.sigmoid(block.carry(x)) * x)
        assert found.units[0].shortcut == "gated"

    def test_two_transforms_are_not_guessed(self):
        def written(s, x):
            gate = s.gate(x)
            return gate * s.f(x) + (1 - gate) * s.g(x)

        (unit,) = find(
            Net(Sum(written, f=layer(), g=layer(), gate=nn.Sequential(layer(), nn.Sigmoid()))), EXAMPLE
        ).units
        assert unit.status == "both gates multiply the same layers, so neither side is the shortcut"


class UNet(nn.Module):
    """Residual blocks between a fork and a concatenation."""

    def __init__(self, join=torch.cat):
        super().__init__()
        torch.manual_seed(1)
        self.join = join
        self.stem = layer()
        self.down = Sum(lambda s, x: torch.relu(x + s.f(x)), f=layer())
        self.middle = nn.Sequential(layer(), Sum(lambda s, x: x + s.f(x), f=layer()))
        self.up = nn.Linear(12, 6)
        self.last = Sum(lambda s, x: x + s.f(x), f=layer())
        self.head = nn.Linear(6, 4)

    def forward(self, x, without=()):
        x = self.stem(x)
        skipped = x = torch.relu(x) if "down" in without else self.down(x)
        x = self.middle[0](x)
        x = x if "middle.1" in without else self.middle[1](x)
        x = self.up(torch.cat([skipped, x], 1))
        return self.head(x if "last" in without else self.last(x))


class TestOffTheTrunk:
    def test_unet(self):
        net = UNet().eval()
        found = find(net, EXAMPLE)
        assert isinstance(found, WholeModel)
        assert [unit.name for unit in found.units] == ["down", "middle.1", "last"]
        assert {(unit.status, unit.num_params, unit.input_shape) for unit in found.units} == {("ok", 42, (6,))}
        for index, unit in enumerate(found.units):
            with torch.inference_mode():
                expected = net(EXAMPLE, without=(unit.name,))
                torch.testing.assert_close(found.forward(EXAMPLE, deleted=[index]), expected)
                assert not torch.allclose(net(EXAMPLE), expected, atol=1e-3)
                with resprobe.deleted(net, [unit.name]):
                    torch.testing.assert_close(net(EXAMPLE), expected)

    def test_lesions_of_whole_passes_are_those_of_segments(self):
        """The same function once as a chain and once with a size that the last operation reads from the input."""

        class Sized(Net):
            def forward(self, x):
                return super().forward(x).reshape(x.shape[0], 4)

        blocks = [Sum(lambda s, x: torch.relu(x + s.f(x)), f=layer()) for _ in range(3)]
        chain, sized = Net(*blocks).eval(), Sized(*blocks).eval()
        sized.load_state_dict(chain.state_dict())
        assert isinstance(find(chain, EXAMPLE), Segments)
        assert isinstance(find(sized, EXAMPLE), WholeModel)
        batches = [(torch.randn(20, 6), torch.arange(20) % 4) for _ in range(2)]
        torch.testing.assert_close(*(resprobe.lesion(net, batches).loss.values for net in (chain, sized)))
        curves = [
            resprobe.lesion_curve(net, batches, num_deleted=[1, 3], draws=2, units=["blocks.0", "blocks.1", "blocks.2"])
            for net in (chain, sized)
        ]
        torch.testing.assert_close(*(curve.loss.values for curve in curves))
        with pytest.raises(
            ResprobeError, match="expected a model that is a chain of units, got Sized, where its units"
        ):
            resprobe.reorder(sized, batches, num_swaps=[1], draws=1)

    def test_sizes_hide_no_unit(self):
        """A unit whose branch reads the size of a tensor from before the unit, as windowed attention does."""

        def windowed(s, x):
            batch, features = x.shape
            x = x + s.position(x)
            windows = torch.tanh(s.norm(x).view(batch * 2, features // 2))
            return x + s.attention(windows.view(batch, features))

        def block():
            return Sum(windowed, position=layer(), norm=nn.LayerNorm(6), attention=layer())

        net = Net(block(), block()).eval()
        found = find(net, EXAMPLE)
        assert isinstance(found, WholeModel)
        assert [(unit.name, unit.status) for unit in found.units] == [
            (f"blocks.{index}.{part}", "ok") for index in (0, 1) for part in ("position", "attention")
        ]
        with torch.inference_mode():
            x = net.stem(EXAMPLE)
            expected = net.head(net.blocks[1](x + net.blocks[0].position(x)))
            torch.testing.assert_close(found.forward(EXAMPLE, deleted=[1]), expected)
            torch.testing.assert_close(found.forward(EXAMPLE[:2], deleted=[1]), expected[:2])

    def test_sizes_leave_a_plain_net_plain(self):
        class Flattened(Net):
            def forward(self, x):
                return super().forward(x).view(x.shape[0], -1)

        layers = [layer(), nn.ReLU(), layer(), nn.ReLU()]
        net = Flattened(*layers)
        found = find(net, EXAMPLE)
        assert isinstance(found, WholeModel)
        assert [(unit.name, unit.kind, unit.status) for unit in found.units] == [
            ("blocks.0", "plain", "ok"),
            ("blocks.2", "plain", "ok"),
        ]
        with torch.inference_mode():
            expected = net.head(torch.relu(layers[2](net.stem(EXAMPLE))))
            torch.testing.assert_close(found.forward(EXAMPLE, deleted=[0]), expected)

    def test_what_hooks_cannot_reach_has_a_reason(self):
        class Flat(UNet):
            def forward(self, x):
                skipped = x = self.stem(x)
                x = x + F.linear(x, self.middle[0].weight)
                x = x + F.linear(x, self.last.f.weight)
                x = x + self.down.f(x)
                return self.head(self.up(torch.cat([skipped, x], 1)))

        net = Flat()
        result = resprobe.lesion(net, [(EXAMPLE, torch.arange(3))])
        reason = "hooks can't delete it: its branch ends in no module of its own, and no module holds this unit alone"
        assert result.status.values.tolist() == [reason, reason, "ok"]
        assert result.unit.values.tolist() == ["middle", "last", "down"]
        assert result.num_correct.values[:2].tolist() == [-1, -1]
        with pytest.raises(
            ResprobeError, match="one that hooks can delete, got: its branch ends in no module of its own"
        ):
            resprobe.deleted(net, ["middle"]).__enter__()

    def test_branch_that_is_read_elsewhere_is_no_unit(self):
        def written(s, x):
            h = s.f(x)
            return torch.cat([x + s.g(h), h], 1)

        net = Net(Sum(written, f=layer(), g=layer()), nn.Linear(12, 6))
        with pytest.raises(ResprobeError, match="no residual units: its joins are concatenations and additions"):
            find(net, EXAMPLE)

    def test_shortcut_may_be_read_elsewhere(self):
        def written(s, x):
            h = s.p(x)
            return torch.cat([h + s.g(s.f(x)), h], 1)

        net = Net(Sum(written, f=layer(), g=layer(), p=layer()), nn.Linear(12, 6))
        (unit,) = find(net, EXAMPLE).units
        assert (unit.name, unit.shortcut, unit.status) == ("blocks.0", "projection", "ok")


class TestNames:
    def test_two_units_in_one_module(self):
        def encoder(s, x):
            x = x + s.attention(s.norm1(x))
            return x + s.mlp(s.norm2(x))

        blocks = [
            Sum(
                encoder,
                attention=layer(),
                mlp=nn.Sequential(layer(), layer()),
                norm1=nn.LayerNorm(6),
                norm2=nn.LayerNorm(6),
            )
            for _ in range(2)
        ]
        found = find(Net(*blocks), EXAMPLE)
        assert [unit.name for unit in found.units] == [
            *("blocks.0.attention", "blocks.0.mlp"),
            *("blocks.1.attention", "blocks.1.mlp"),
        ]

    def test_module_that_is_called_twice(self):
        block = Sum(lambda s, x: torch.relu(x + s.f(x)), f=layer())
        net = Net(block, layer(), block).eval()
        found = find(net, EXAMPLE)
        assert [(unit.name, unit.status) for unit in found.units] == [("blocks.0@1", "ok"), ("blocks.0@2", "ok")]
        assert {unit.hook_problem for unit in found.units} == {
            "its branch ends in module blocks.0.f, which is called 2 times"
        }
        with torch.inference_mode():
            x = net.blocks[1](torch.relu(net.stem(EXAMPLE)))
            chain = found.units[1].forward(found.units[0].forward_deleted(found.stem(EXAMPLE)))
            torch.testing.assert_close(chain, torch.relu(x + block.f(x)))
        with pytest.raises(
            ResprobeError, match="hooks can delete, got: its branch ends in module blocks.0.f, which is"
        ):
            resprobe.deleted(net, ["blocks.0@2"]).__enter__()

    def test_shared_dropout_does_not_matter(self):
        drop = nn.Dropout()

        def written(s, x):
            x = x + s.drop(s.f(x))
            return x + s.drop(s.g(x))

        net = Net(Sum(written, f=layer(), g=layer(), drop=drop)).eval()
        assert [(unit.name, unit.hook_problem) for unit in find(net, EXAMPLE).units] == [
            ("blocks.0.f", ""),
            ("blocks.0.g", ""),
        ]

    def test_nested_sequential(self):
        inner = nn.Sequential(nn.Sequential(Sum(lambda s, x: x + s.f(x), f=layer())), nn.Identity())
        assert [unit.name for unit in find(Net(inner, inner[0][0].f), EXAMPLE).units] == ["blocks.0.0.0"]
