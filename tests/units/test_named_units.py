"""Units that the caller names, in models that torch.fx can't trace."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import resprobe
from resprobe.errors import ResprobeError
from resprobe.units import WholeModel, find

EXAMPLE = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))


class Opaque(nn.Module):
    """A net whose forward can't be traced."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x) if x.isfinite().all() else self.net(torch.zeros_like(x))


BLOCKS = [f"layer{stage}.{index}" for stage in (1, 2, 3) for index in range(3)]


def inside(names):
    return [f"net.{name}" for name in names]


@pytest.fixture
def residual(make_net):
    return make_net("resnet20", shortcut="projection")


class TestFind:
    def test_branches(self, residual):
        found = find(Opaque(residual), EXAMPLE, units=inside(f"{name}.bn2" for name in BLOCKS), shortcut="outside")
        assert isinstance(found, WholeModel)
        assert {(unit.kind, unit.shortcut, unit.bypass, unit.status) for unit in found.units} == {
            ("residual", "outside", "shortcut", "ok")
        }
        assert [unit.stage for unit in found.units] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
        assert [unit.depth for unit in found.units] == list(range(1, 10))
        assert found.units[3].input_shape == found.units[3].output_shape == (8, 4, 4)

    def test_pad_equals_the_bypass_of_a_plain_block(self, make_net):
        net = make_net("plain20")
        known = find(net, EXAMPLE, by="block")
        named = find(Opaque(net), EXAMPLE, units=inside(BLOCKS), shortcut="none")
        assert [unit.bypass for unit in named.units] == [unit.bypass for unit in known.units]
        assert [unit.num_params for unit in named.units] == [unit.num_params for unit in known.units]
        assert {unit.kind for unit in named.units} == {"plain"}

    def test_identity_across_a_change_of_shape(self, residual):
        units = find(Opaque(residual), EXAMPLE, units=inside(["layer1.1", "layer2.0"]), shortcut="identity").units
        assert [unit.status for unit in units] == ["ok", "no identity leads from shape (4, 8, 8) to (8, 4, 4)"]

    def test_input_that_no_output_could_be(self):
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.f = nn.Linear(64, 64)

            def forward(self, x):
                return torch.relu(x + self.f(x))

        net = Opaque(nn.Sequential(nn.Flatten(), Block(), Block(), nn.Linear(64, 10)))
        first, second = find(net, EXAMPLE, units=["net.1", "net.2"], shortcut="identity").units
        assert first.status == (
            "an activation seems to follow its addition, so its input is no possible output; name its branch"
        )
        assert second.status == "ok"

    def test_modules_that_are_not_called_once(self, make_net):
        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.net, self.twice, self.never = make_net(), nn.Linear(10, 10), nn.Linear(10, 10)

            def forward(self, x):
                return self.twice(self.twice(self.net(x)))

        units = find(Twice(), EXAMPLE, units=["twice", "never", "net.layer1.0"], shortcut="identity").units
        assert [unit.status for unit in units] == [
            "it is called 2 times in one pass, not once",
            "it is called 0 times in one pass, not once",
            "ok",
        ]

    def test_output_without_a_tensor(self):
        class Record(nn.Module):
            def forward(self, x):
                return {"features": x}

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.record, self.head = Record(), nn.Linear(64, 10)

            def forward(self, x):
                return self.head(self.record(x)["features"].flatten(1))

        (unit,) = find(Net(), EXAMPLE, units=["record"], shortcut="identity").units
        assert unit.status == "its output is no tensor but dict"

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"units": ["net.layer1.0"]}, "expected shortcut= with them, got none"),
            ({"shortcut": "identity"}, "expected it with units= and without by="),
            ({"units": [], "shortcut": "identity"}, r"expected a list of names of modules, got \[\]"),
            (
                {"units": "net.layer1.0", "shortcut": "identity"},
                "expected a list of names of modules, got 'net.layer1.0'",
            ),
            ({"units": ["net.layer1.9"], "shortcut": "identity"}, "did you mean net.layer1.2"),
            (
                {"units": ["net.layer1.0"], "shortcut": "projection"},
                "expected one of identity, pad, outside, none, got",
            ),
            ({"units": ["net.layer1.0", "net.layer1"], "shortcut": "pad"}, "got net.layer1.0 in net.layer1; name one"),
            ({"units": ["net.layer1.0", "net.layer1.0"], "shortcut": "pad"}, "got net.layer1.0 in net.layer1.0"),
        ],
    )
    def test_errors(self, residual, options, message):
        with pytest.raises(ResprobeError, match=message):
            find(Opaque(residual), EXAMPLE, **options)


class TestLesions:
    def test_equal_those_of_the_model_that_can_be_traced(self, residual, digits):
        known = resprobe.lesion(residual, digits, per_image=True)
        branches = inside(f"{name}.bn2" for name in BLOCKS)
        named = resprobe.lesion(Opaque(residual), digits, units=branches, shortcut="outside", per_image=True)
        assert named.unit.values.tolist() == branches
        assert json.loads(named.attrs["settings"])["shortcut"] == "outside"
        assert "shortcut" not in json.loads(known.attrs["settings"])
        np.testing.assert_array_equal(named.num_correct, known.num_correct)
        np.testing.assert_allclose(named.image_loss, known.image_loss, rtol=1e-4)

    def test_plain_blocks(self, make_net, digits):
        net = make_net("plain20")
        known = resprobe.lesion(net, digits, by="block")
        named = resprobe.lesion(Opaque(net), digits, units=inside(BLOCKS), shortcut="none")
        np.testing.assert_allclose(named.loss, known.loss, rtol=1e-4)

    def test_what_cannot_be_deleted_has_a_reason(self, residual, digits):
        units = inside(["layer2.0", "layer1.1"])
        result = resprobe.lesion(Opaque(residual), digits, units=units, shortcut="identity")
        assert result.num_correct.values[0] == -1
        assert result.status.values.tolist() == ["no identity leads from shape (4, 8, 8) to (8, 4, 4)", "ok"]
        known = resprobe.lesion(residual, digits, units=["layer1.1"])
        np.testing.assert_allclose(result.loss[1], known.loss[0], rtol=1e-4)

    def test_curve(self, residual, digits):
        branches = inside(f"{name}.bn2" for name in BLOCKS)
        known = resprobe.lesion_curve(residual, digits, num_deleted=[2, 9], draws=3)
        named = resprobe.lesion_curve(
            Opaque(residual), digits, num_deleted=[2, 9], draws=3, units=branches, shortcut="outside"
        )
        np.testing.assert_array_equal(named.deleted, known.deleted)
        np.testing.assert_allclose(named.loss, known.loss, rtol=1e-4)


class TestDeleted:
    def test_equals_the_model_that_can_be_traced(self, residual):
        net = Opaque(residual)
        with torch.inference_mode():
            with resprobe.deleted(residual, ["layer1.1", "layer2.0"]):
                expected = net(EXAMPLE)
            with resprobe.deleted(net, inside(["layer1.1.bn2", "layer2.0.bn2"]), shortcut="outside"):
                torch.testing.assert_close(net(EXAMPLE), expected)

    def test_tuple_and_keyword(self):
        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.f = nn.Linear(64, 64)

            def forward(self, *, hidden):
                return hidden + self.f(hidden), "weights"

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.attention, self.head = Attention(), nn.Linear(64, 10)

            def forward(self, x):
                return self.head(self.attention(hidden=x.flatten(1))[0])

        net = Net()
        with torch.inference_mode(), resprobe.deleted(net, ["attention"], shortcut="identity"):
            torch.testing.assert_close(net(EXAMPLE), net.head(EXAMPLE.flatten(1)))

    def test_no_bypass(self, make_net):
        net = make_net()
        with (
            pytest.raises(ResprobeError, match=r"expected a unit that can be bypassed, got shapes \(8, 2, 2\) and \(4"),
            resprobe.deleted(
                nn.Sequential(net.conv1, nn.Conv2d(4, 8, 3, 4, 1), up := nn.ConvTranspose2d(8, 4, 4, 4)),
                ["2"],
                shortcut="pad",
            ) as net,
        ):
            net(EXAMPLE)
        assert not up._forward_hooks
        assert not up._forward_pre_hooks
