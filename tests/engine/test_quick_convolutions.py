import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

import resprobe
from resprobe.engine import quick_convolutions, scoring
from resprobe.engine.batches import CheckedBatches
from resprobe.engine.kernels.availability import obstacle
from resprobe.engine.quick_convolutions import quicken
from resprobe.engine.scoring import fast_segments
from resprobe.engine.side_by_side import Crew
from resprobe.units import find
from tests.conftest import randomised

if obstacle() is not None:
    pytest.skip(f"no kernels: {obstacle()}", allow_module_level=True)

from resprobe.engine.kernels.convolution import WinogradConvolution

MANY = 10**9


@pytest.fixture(autouse=True)
def switch_on(monkeypatch):
    monkeypatch.setenv("RESPROBE_KERNELS", "1")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


def images(number=4, channels=16, size=8):
    return torch.randn(number, channels, size, size, generator=torch.Generator().manual_seed(0))


def segments_of(model, example):
    return fast_segments(find(model, example), "float32")


def quick_ones(segments):
    return [
        module for unit in segments.units for module in unit.whole.modules() if isinstance(module, WinogradConvolution)
    ]


def assert_same(segments, quick, x):
    with torch.inference_mode():
        kept = x.clone()
        expected, got = segments.forward(x), quick.forward(x)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert torch.equal(x, kept)


class Sum(nn.Module):
    """A unit whose shortcut the caller computes, before or behind the convolution."""

    def __init__(self, shortcut, before=False):
        super().__init__()
        self.convolution = nn.Conv2d(16, 16, 3, padding=1)
        self.shortcut = shortcut
        self.before = before

    def forward(self, x):
        if self.before:
            shortcut = self.shortcut(x)
            return F.relu(shortcut + self.convolution(x))
        return F.relu(self.convolution(x) + self.shortcut(x))


class Net(nn.Module):
    def __init__(self, *units):
        super().__init__()
        self.units = nn.Sequential(*units)

    def forward(self, x):
        return self.units(x).mean((2, 3))


class Branch(nn.Module):
    """`x + branch(x)`."""

    def __init__(self, *layers):
        super().__init__()
        self.branch = nn.Sequential(*layers)

    def forward(self, x):
        return x + self.branch(x)


class TestNetworks:
    # of the two convolutions of each block, those of stride 2 and of three channels stay
    @pytest.mark.parametrize(
        ("name", "options", "number"),
        [
            ("resnet14", {}, 10),
            ("resnet14", {"shortcut": "projection"}, 10),
            ("resnet14", {"norm": "none"}, 10),
            ("preresnet14", {}, 10),
            ("preresnet14", {"norm": "none"}, 10),
            ("plain14", {}, 10),
            ("resnet14", {"width": 8}, 6),
        ],
    )
    def test_same_function(self, name, options, number):
        model = randomised(resprobe.build(resprobe.parse_architecture(name, **options)))
        x = images(5, 3, 16)
        segments = segments_of(model, x)
        quick = quicken(segments, x[:2], MANY)
        assert len(quick_ones(quick)) == number
        assert quick_ones(segments) == []
        assert_same(segments, quick, x)

    def test_addition_and_relu_are_part_of_it(self):
        model = resprobe.build(resprobe.parse_architecture("resnet8"))
        quick = quicken(segments_of(model, images(2, 3, 16)), images(2, 3, 16), MANY)
        assert [(one.adds, one.relu) for one in quick_ones(quick)] == [(False, True)] + 3 * [(True, True)]
        calls = [node.op for node in quick.units[0].whole.graph.nodes]
        assert "call_function" not in calls

    def test_sequence_of_operations_before_the_activation(self):
        model = resprobe.build(resprobe.parse_architecture("preresnet8"))
        quick = quicken(segments_of(model, images(2, 3, 16)), images(2, 3, 16), MANY)
        assert {(one.adds, one.relu) for one in quick_ones(quick)} == {(False, True), (True, False)}

    def test_whole_study_has_the_same_counts(self, digits, make_net, monkeypatch):
        net = make_net("resnet14")
        direct = resprobe.lesion(net, digits)
        monkeypatch.setattr(quick_convolutions, "WORTHWHILE", 0)
        quick = resprobe.lesion(net, digits)
        assert quick.num_correct.equals(direct.num_correct)
        assert not quick.loss.equals(direct.loss)
        torch.testing.assert_close(*(torch.tensor(result.loss.values) for result in (quick, direct)), rtol=1e-5, atol=0)


class TestUnits:
    @pytest.mark.parametrize("before", [False, True])
    @pytest.mark.parametrize("shortcut", [nn.Identity(), nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 3, padding=1)])
    def test_shortcuts(self, shortcut, before):
        torch.manual_seed(0)
        net = Net(Sum(shortcut, before), Sum(shortcut, before)).eval()
        segments = segments_of(net, images())
        quick = quicken(segments, images(), MANY)
        assert any(one.adds for one in quick_ones(quick))
        assert_same(segments, quick, images())

    def test_input_that_is_overwritten_before_the_addition(self):
        class Overwriting(nn.Module):
            def __init__(self):
                super().__init__()
                self.convolution = nn.Conv2d(16, 16, 3, padding=1)

            def forward(self, x):
                entry = x * 2
                branch = self.convolution(entry)
                return branch + entry.relu_()

        net = Net(Overwriting(), Overwriting()).eval()
        segments = segments_of(net, images())
        quick = quicken(segments, images(), MANY)
        assert [one.adds for one in quick_ones(quick)] == [False, False]
        assert_same(segments, quick, images())

    def test_convolution_that_is_read_twice(self):
        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.convolution = nn.Conv2d(16, 16, 3, padding=1)

            def forward(self, x):
                y = self.convolution(x)
                return x + y * F.relu(y)

        segments = segments_of(Net(Twice(), Twice()).eval(), images())
        quick = quicken(segments, images(), MANY)
        assert [(one.adds, one.relu) for one in quick_ones(quick)] == 2 * [(False, False)]
        assert_same(segments, quick, images())

    def test_module_that_is_called_twice(self):
        convolution = nn.Conv2d(16, 16, 3, padding=1)
        segments = segments_of(Net(Branch(convolution, nn.ReLU(), convolution)).eval(), images())
        quick = quicken(segments, images(), MANY)
        assert len(quick_ones(quick)) == 2
        assert_same(segments, quick, images())


class Custom(nn.Module):
    """A unit `x + tanh(...)` of what a function makes of `x`, a convolution and another one."""

    def __init__(self, function):
        super().__init__()
        self.convolution, self.other = (nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
        self.pointwise = nn.Conv2d(16, 16, 1)
        self.constant = nn.Parameter(torch.randn(16, 1, 1))
        self.negation = Negation()
        self.function = function

    def forward(self, x):
        return x + torch.tanh(self.function(self, x))


class Negation(nn.Module):
    """Overwrites its input, which torch.fx is not to see."""

    def forward(self, x):
        return x.neg_() if x.sum() != 0 else x


def overwritten_by_out(unit, x):
    y = torch.tanh(unit.convolution(x))
    z = unit.other(y)
    return z + torch.neg(y, out=y)


def overwritten_by_method(unit, x):
    y = torch.tanh(unit.convolution(x))
    z = unit.other(y)
    return z + y.__imul__(3)


def overwritten_by_module(unit, x):
    y = torch.tanh(unit.convolution(x))
    z = unit.other(y)
    return z + unit.negation(y)


def overwritten_and_read(unit, x):
    y = unit.convolution(x)
    torch.relu_(y)
    return y + unit.pointwise(y)


def added_to_itself(unit, x):
    y = unit.convolution(x)
    return y + y


def added_to_itself_in_place(unit, x):
    y = unit.convolution(x)
    y += y
    return y


FUNCTIONS = {
    **{function.__name__: function for function in (overwritten_by_out, overwritten_by_method, overwritten_by_module)},
    **{function.__name__: function for function in (overwritten_and_read, added_to_itself, added_to_itself_in_place)},
    "second summand": lambda unit, x: unit.pointwise(x) + unit.convolution(x),
    "keyword": lambda unit, x: unit.convolution(input=x) + x,
    "constant": lambda unit, x: F.relu(unit.convolution(x) + unit.constant),
    "keyword of the activation": lambda unit, x: torch.relu_(input=unit.convolution(x)),
    "number between": lambda unit, x: torch.add(unit.convolution(x), 2, unit.pointwise(x)),
    "size": lambda unit, x: unit.convolution(x) + x.size(2),
}


@pytest.mark.filterwarnings("ignore:This overload of add is deprecated")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    torch.manual_seed(0)
    net = Net(Custom(FUNCTIONS[name]), Custom(FUNCTIONS[name])).eval()
    segments = segments_of(net, images())
    quick = quicken(segments, images(), MANY)
    assert quick_ones(quick) or name == "keyword"
    assert_same(segments, quick, images())
    with torch.inference_mode():
        torch.testing.assert_close(quick.forward(images()), net(images()), rtol=1e-4, atol=1e-5)


def test_constant_is_added_outside():
    segments = segments_of(Net(Custom(FUNCTIONS["constant"])).eval(), images())
    assert [one.adds for one in quick_ones(quicken(segments, images(), MANY))] == [False]


@pytest.mark.parametrize("attribute", ["in_channels", "out_channels"])
def test_channels_that_were_pruned(attribute):
    """Whoever prunes a convolution may leave the numbers of its channels behind."""
    torch.manual_seed(0)
    branch = Branch(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 16, 3, padding=1))
    setattr(branch.branch[0 if attribute == "out_channels" else 2], attribute, 16)
    segments = segments_of(Net(branch).eval(), images())
    quick = quicken(segments, images(), MANY)
    assert len(quick_ones(quick)) == 2
    assert_same(segments, quick, images())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_another_default_type(dtype, make_net, digits, monkeypatch):
    net = make_net("resnet8", width=16)
    monkeypatch.setattr(quick_convolutions, "WORTHWHILE", 0)
    expected = resprobe.lesion(net, digits)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        assert resprobe.lesion(net, digits).loss.equals(expected.loss)
    finally:
        torch.set_default_dtype(before)


def test_autocast():
    segments = segments_of(Net(Branch(nn.Conv2d(16, 16, 3, padding=1))).eval(), images())
    with torch.autocast("cpu", torch.bfloat16):
        assert quicken(segments, images(), MANY) is segments


def test_numbers_beyond_the_range_of_the_quick_way(monkeypatch):
    """Sums of four that are near the largest float32 overflow where those of a direct convolution don't."""
    torch.manual_seed(0)
    convolution = nn.Conv2d(16, 16, 3, padding=1, bias=False)
    net = nn.Sequential(
        nn.Conv2d(16, 16, 1), Branch(convolution), Branch(convolution), nn.Flatten(), nn.Linear(1024, 3)
    )
    nn.init.constant_(net[0].weight, 1 / 16)
    nn.init.zeros_(net[0].bias)
    nn.init.normal_(net[4].weight, std=1e-39)
    with torch.no_grad():
        convolution.weight.zero_()[:, :, 1, 1] = -1 / 32
    pixels = torch.full((2, 16, 8, 8), 3e38)
    pixels[:, :, ::2] *= -1
    batches = [(pixels, torch.zeros(2, dtype=torch.int64))]
    segments = segments_of(net.eval(), pixels)
    with torch.inference_mode():
        assert segments.forward(pixels).isfinite().all()
        assert not quicken(segments, pixels, MANY).forward(pixels).isfinite().all()
    direct = resprobe.lesion(net, batches)
    monkeypatch.setattr(quick_convolutions, "WORTHWHILE", 0)
    quick = resprobe.lesion(net, batches)
    assert quick.loss.equals(direct.loss)
    assert not (quick.loss == quick.baseline_loss).any()


def subclass():
    class Scaled(nn.Conv2d):
        def forward(self, x):
            return 2 * super().forward(x)

    return Scaled(16, 16, 3, padding=1)


def assigned():
    convolution = nn.Conv2d(16, 16, 3, padding=1)
    convolution.forward = lambda x: x
    return convolution


LEFT_ALONE = {
    "kernel of 5": lambda: nn.Conv2d(16, 16, 5, padding=2),
    "kernel of 1": lambda: nn.Conv2d(16, 16, 1),
    "groups": lambda: nn.Conv2d(16, 16, 3, padding=1, groups=2),
    "dilation": lambda: nn.Conv2d(16, 16, 3, padding=2, dilation=2),
    "reflected border": lambda: nn.Conv2d(16, 16, 3, padding=1, padding_mode="reflect"),
    "two padded": lambda: nn.Sequential(nn.Conv2d(16, 16, 3, padding=2), nn.Conv2d(16, 16, 3, padding=0)),
    "parametrised": lambda: parametrizations.weight_norm(nn.Conv2d(16, 16, 3, padding=1)),
    "subclass": subclass,
    "forward assigned": assigned,
    "channels": lambda: nn.Sequential(nn.Conv2d(16, 12, 3, padding=1), nn.Conv2d(12, 16, 3, padding=1)),
}


@pytest.mark.parametrize("kind", LEFT_ALONE)
def test_left_alone(kind):
    torch.manual_seed(0)
    segments = segments_of(Net(Branch(LEFT_ALONE[kind](), nn.Tanh())).eval(), images())
    quick = quicken(segments, images(), MANY)
    assert quick_ones(quick) == []
    assert_same(segments, quick, images())


@pytest.mark.parametrize("layer", [nn.Conv2d(16, 16, 3, padding="same"), nn.Conv2d(16, 16, 3, padding=1, bias=False)])
def test_ways_to_say_it(layer):
    segments = segments_of(Net(Branch(layer)).eval(), images())
    quick = quicken(segments, images(), MANY)
    assert len(quick_ones(quick)) == 1
    assert_same(segments, quick, images())


def test_odd_sizes_are_left_alone():
    segments = segments_of(Net(Branch(nn.Conv2d(16, 16, 3, padding=1))).eval(), images(size=7))
    assert quick_ones(quicken(segments, images(size=7), MANY)) == []


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("relu", [False, True])
class TestInputs:
    def make(self, relu, bias, adds=True):
        convolution = nn.Conv2d(16, 32, 3, padding=1, bias=bias)
        shape = quick_convolutions.Shape(16, 32, 8, 8)
        return convolution, WinogradConvolution(convolution, shape, adds=adds, relu=relu)

    def check(self, pair, relu, x, summand=None):
        convolution, quick = pair
        with torch.inference_mode():
            expected = convolution(x) if summand is None else convolution(x) + summand
            kept = [x.clone(), None if summand is None else summand.clone()]
            got = quick(x) if summand is None else quick(x, summand)
            torch.testing.assert_close(got, expected.relu() if relu else expected, rtol=1e-5, atol=1e-5)
            assert torch.equal(x, kept[0])
            assert summand is None or torch.equal(summand, kept[1])

    @pytest.mark.parametrize("number", [0, 1, 5])
    def test_number_of_images_and_layout(self, relu, bias, number):
        pair = self.make(relu, bias, adds=False)
        self.check(pair, relu, images(number))
        self.check(pair, relu, images(number).to(memory_format=torch.channels_last))
        self.check(pair, relu, images(number).transpose(2, 3))

    @pytest.mark.parametrize("shape", [(5, 32, 8, 8), (1, 32, 8, 8), (32, 1, 1), (5, 1, 8, 8)])
    def test_summands(self, relu, bias, shape):
        pair = self.make(relu, bias)
        self.check(pair, relu, images(5), torch.randn(shape))
        self.check(pair, relu, images(5), torch.randn(shape).double().float().contiguous())

    def test_summand_of_another_type(self, relu, bias):
        _, quick = self.make(relu, bias)
        with torch.inference_mode():
            assert quick(images(5), torch.randn(5, 32, 8, 8).double()).dtype is torch.float64

    def test_images_of_another_type(self, relu, bias):
        convolution, quick = self.make(relu, bias, adds=False)
        convolution.double()
        with torch.inference_mode():
            expected = convolution(images(5).double())
            assert torch.equal(quick(images(5).double()), expected.relu() if relu else expected)

    def test_images_of_another_size(self, relu, bias):
        self.check(self.make(relu, bias, adds=False), relu, images(3, size=10))
        self.check(self.make(relu, bias), relu, images(3, size=10), torch.randn(3, 32, 10, 10))


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([(torch.zeros(1, 8, 8), 0)] * 6)


class TestWhen:
    @pytest.mark.parametrize(
        ("make", "number"),
        [
            (lambda pairs: pairs, 6),
            (lambda pairs: (pair for pair in pairs), 2),
            (lambda pairs: torch.utils.data.DataLoader(Stream(), batch_size=2), 2),
        ],
        ids=["list", "generator", "stream"],
    )
    def test_number_of_images(self, make_net, make, number):
        pairs = [(torch.zeros(2, 1, 8, 8), torch.zeros(2, dtype=torch.int64))] * 3
        assert CheckedBatches(make(pairs), torch.device("cpu")).about_num_images == number
        assert resprobe.lesion(make_net("resnet8"), make(pairs)).num_images == 6

    def test_short_studies_run_as_before(self):
        model = resprobe.build(resprobe.parse_architecture("resnet8"))
        x = images(2, 3, 16)
        segments = segments_of(model, x)
        products = 9 * (16 * 16 * 16 * 16 * 2 + 32 * 32 * 8 * 8 + 64 * 64 * 4 * 4)
        runs = int(quick_convolutions.WORTHWHILE / products)
        assert quicken(segments, x, runs) is segments
        assert quicken(segments, x, runs + 1) is not segments

    @pytest.mark.parametrize(
        ("threads", "crew", "precision", "is_asked"),
        [
            (1, None, "float32", True),
            (2, None, "float32", False),
            (2, Crew(2, 1), "float32", True),
            (4, Crew(2, 2), "float32", False),
            (1, None, "float64", False),
        ],
    )
    def test_one_thread_and_float32(self, monkeypatch, make_net, digits, threads, crew, precision, is_asked):
        asked = []
        monkeypatch.setattr(scoring, "quicken", lambda segments, example, runs: asked.append(runs) or segments)
        monkeypatch.setattr(scoring.Crew, "of", lambda batch: crew)
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
        resprobe.lesion(make_net("resnet8"), digits, precision=precision)
        assert asked == ([digits.num_images * 5 // 2] if is_asked else [])

    def test_the_model_stays_as_it_was(self, monkeypatch, make_net, digits):
        monkeypatch.setattr(quick_convolutions, "WORTHWHILE", 0)
        net = make_net("resnet8")
        before = copy.deepcopy(net.state_dict())
        resprobe.lesion(net, digits)
        assert all(map(torch.equal, net.state_dict().values(), before.values()))
        assert not [module for module in net.modules() if isinstance(module, WinogradConvolution)]
