import copy

import pytest
import torch
from torch import fx, nn

import resprobe
from resprobe.errors import ResprobeError
from resprobe.normalisation.folding import fold
from resprobe.normalisation.norm_folding import ChannelAffine
from resprobe.units import find
from resprobe.units.structure.tracing import private_copy, trace

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


class Net(nn.Module):
    """Convolutions and normalisations of 3 channels by name, wired by a function of them and the images."""

    def __init__(self, wire, **modules):
        super().__init__()
        self.wire = wire
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x):
        return self.wire(self, x).mean((2, 3))


def conv(bias=False, in_channels=3):
    return nn.Conv2d(in_channels, 3, 3, padding=1, bias=bias)


def in_use(norm):
    """Give a normalisation statistics and an affine map that are not those of a new one."""
    generator = torch.Generator().manual_seed(0)
    for tensor, low, high in ((norm.running_mean, -1, 1), (norm.running_var, 0.3, 3), (norm.weight, 0.5, 2)):
        if tensor is not None:
            tensor.data.uniform_(low, high, generator=generator)
    if norm.bias is not None:
        norm.bias.data.uniform_(-1, 1, generator=generator)
    return norm


def simple(self, x):
    return self.norm(self.conv(x)).relu()


CASES = {
    "no bias": (simple, lambda: {"conv": conv(in_channels=1), "norm": nn.BatchNorm2d(3)}, []),
    "bias": (simple, lambda: {"conv": conv(bias=True, in_channels=1), "norm": nn.BatchNorm2d(3)}, []),
    "no affine": (simple, lambda: {"conv": conv(in_channels=1), "norm": nn.BatchNorm2d(3, affine=False)}, []),
    "ReLU between": (
        lambda self, x: self.norm(self.conv(x).relu()),
        lambda: {"conv": conv(in_channels=1), "norm": nn.BatchNorm2d(3)},
        ["norm"],
    ),
    "no affine, ReLU between": (
        lambda self, x: self.norm(self.conv(x).relu()),
        lambda: {"conv": conv(in_channels=1), "norm": nn.BatchNorm2d(3, affine=False)},
        ["norm"],
    ),
    "read by others": (
        lambda self, x: self.norm(y := self.conv(x)) + y,
        lambda: {"conv": conv(in_channels=1), "norm": nn.BatchNorm2d(3)},
        ["norm"],
    ),
    "called again without": (
        lambda self, x: self.conv(self.norm(self.conv(x))),
        lambda: {"conv": nn.Conv2d(1, 1, 3, padding=1), "norm": nn.BatchNorm2d(1)},
        ["norm"],
    ),
    "pair that is called twice": (
        lambda self, x: self.norm(self.conv(self.norm(self.conv(x)).relu())),
        lambda: {"conv": nn.Conv2d(1, 1, 3, padding=1), "norm": nn.BatchNorm2d(1)},
        [],
    ),
    "normalisation of two convolutions": (
        lambda self, x: self.norm(self.conv(x)) + self.norm(self.other(x)),
        lambda: {"conv": conv(in_channels=1), "other": conv(in_channels=1), "norm": nn.BatchNorm2d(3)},
        ["norm"],
    ),
    "grouped and strided": (
        simple,
        lambda: {"conv": nn.Conv2d(1, 4, 3, stride=2, groups=1, bias=True), "norm": nn.BatchNorm2d(4)},
        [],
    ),
}


class TestFoldNorm:
    @pytest.mark.parametrize("case", CASES)
    @pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
    def test_same_function(self, case, dtype, tolerance):
        wire, make, affine = CASES[case]
        torch.manual_seed(0)
        modules = {name: in_use(m) if isinstance(m, nn.BatchNorm2d) else m for name, m in make().items()}
        net = Net(wire, **modules).to(dtype).eval()
        folded = resprobe.fold_norm(net, IMAGES.to(dtype))
        with torch.no_grad():
            expected, got = net(IMAGES.to(dtype)), folded(IMAGES.to(dtype))
        assert float((got - expected).abs().max()) <= tolerance * float(expected.abs().max())
        assert num_norms(folded) == 0
        assert list(folded.affine) == affine
        assert bool(folded.folded) == (not affine)
        assert sum(isinstance(module, ChannelAffine) for module in folded.modules()) == len(affine)

    @pytest.mark.parametrize(
        ("name", "num_folded", "num_affine"), [("resnet20", 19, 0), ("plain20", 19, 0), ("preresnet20", 9, 10)]
    )
    def test_networks(self, make_net, name, num_folded, num_affine):
        net = make_net(name)
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
            net = net.to(dtype)
            folded = resprobe.fold_norm(net, IMAGES.to(dtype))
            assert (len(folded.folded), len(folded.affine)) == (num_folded, num_affine)
            with torch.no_grad():
                expected, got = net(IMAGES.to(dtype)), folded(IMAGES.to(dtype))
            assert float((got - expected).abs().max()) <= tolerance * float(expected.abs().max())

    def test_linear(self):
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), in_use(nn.BatchNorm1d(5)), nn.Linear(5, 2)).double().eval()
        folded = resprobe.fold_norm(net, IMAGES)
        assert folded.folded == {"2": "1"}
        torch.testing.assert_close(folded(IMAGES), net(IMAGES), rtol=1e-12, atol=1e-12)
        plain = nn.Sequential(nn.Flatten(), in_use(nn.BatchNorm1d(64)), nn.Linear(64, 2)).double().eval()
        affine = resprobe.fold_norm(plain, IMAGES)
        assert affine.affine == ("1",)
        torch.testing.assert_close(affine(IMAGES), plain(IMAGES), rtol=1e-12, atol=1e-12)

    def test_pair_that_is_called_twice_stays_one(self):
        wire, make, _ = CASES["pair that is called twice"]
        folded = resprobe.fold_norm(Net(wire, **make()))
        assert sum(isinstance(module, nn.Conv2d) for module in folded.modules()) == 1

    def test_model_is_left_alone(self, make_net):
        net = make_net("preresnet20").train()
        before = copy.deepcopy(net.state_dict())
        folded = resprobe.fold_norm(net, IMAGES.float())
        assert net.training
        assert not folded.training
        assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
        own = {tensor.data_ptr() for tensor in net.parameters()}
        assert not own & {tensor.data_ptr() for tensor in folded.parameters()}

    def test_parameters_are_trainable_where_the_model_s_are(self, make_net):
        assert all(p.requires_grad for p in resprobe.fold_norm(make_net("preresnet20")).parameters())
        assert not any(p.requires_grad for p in resprobe.fold_norm(make_net().requires_grad_(False)).parameters())
        net = make_net("resnet8").requires_grad_(False)
        net.layer1[0].bn1.requires_grad_(True)
        trainable = [name for name, p in resprobe.fold_norm(net).named_parameters() if p.requires_grad]
        assert trainable == ["network.folded_layer1_0_bn1.weight", "network.folded_layer1_0_bn1.bias"]

    def test_copies_and_state(self, make_net):
        folded = resprobe.fold_norm(make_net("preresnet20"))
        again = copy.deepcopy(folded)
        assert again.affine == folded.affine
        torch.testing.assert_close(again(IMAGES.float()), folded(IMAGES.float()))
        assert resprobe.lesion(folded, [(IMAGES.float(), torch.tensor([0, 1, 2]))]).sizes["unit"] == 9

    @pytest.mark.parametrize(
        ("case", "message"),
        [
            ("no statistics", "normalisation norm: expected stored statistics, got track_running_stats=False"),
            ("other forward", "normalisation norm: expected the forward pass of nn.BatchNorm, got another one"),
            ("two readers", "layer conv: expected one batch normalisation that reads it, got norm and other"),
            ("two calls", "layer conv: expected one batch normalisation that reads it, got norm and other"),
            ("function", "expected a module such as nn.BatchNorm2d, got the function batch_norm"),
            ("untraceable", "model Net: expected a forward pass that torch.fx can trace, .* leave folding out"),
            ("hidden", "normalisation hidden.0: expected one that torch.fx reaches"),
            ("hook", "model Net: expected the same logits after folding, got a difference"),
        ],
    )
    def test_refused_by_name(self, case, message):
        class Hidden(nn.Sequential):
            def forward(self, x):
                return super().forward(x) if float(x.detach().sum()) > -1e9 else x

        norm = nn.BatchNorm2d(1, track_running_stats=case != "no statistics")
        modules = {"conv": nn.Conv2d(1, 1, 3, padding=1), "norm": norm}
        wire = {
            "two readers": lambda self, x: self.norm(y := self.conv(x)) + self.other(y),
            "two calls": lambda self, x: self.other(self.conv(self.norm(self.conv(x)))),
            "function": lambda self, x: nn.functional.batch_norm(
                self.conv(x), self.norm.running_mean, self.norm.running_var
            ),
            "untraceable": lambda self, x: self.norm(x) if x.sum() > 0 else x,
            "hidden": lambda self, x: self.hidden(x),
        }.get(case, simple)
        if case in ("two readers", "two calls"):
            modules["other"] = nn.BatchNorm2d(1)
        if case == "hidden":
            modules = {"hidden": Hidden(nn.BatchNorm2d(1))}
        net = Net(wire, **modules)
        if case == "other forward":
            net.norm.forward = lambda x: x
        if case == "hook":
            net.register_forward_hook(lambda module, args, output: 2 * output)
        with pytest.raises(ResprobeError, match=message) as error:
            resprobe.fold_norm(net, IMAGES.float())
        assert "\n" not in str(error.value)
