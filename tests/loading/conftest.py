"""Small networks written the way other people write theirs, an implementation independent of the recogniser's."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn


class OptionA(nn.Module):
    """Convolutions `conv1`, `conv2` and an option A shortcut, with zeros on a side of choice."""

    def __init__(self, cin, cout, stride, padding="both", pool="slice", residual=True):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.new, self.stride, self.padding, self.pool, self.residual = cout - cin, stride, padding, pool, residual

    def forward(self, x):
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.residual:
            short = x
            if self.stride == 2:
                short = F.max_pool2d(x, 1, 2) if self.pool == "slice" else F.avg_pool2d(x, 2)
            sides = {"both": (self.new // 2, self.new - self.new // 2), "end": (0, self.new), "start": (self.new, 0)}
            out = out + F.pad(short, (0, 0, 0, 0, *sides[self.padding]))
        return F.relu(out)


class SharedPreactivation(nn.Module):
    """A pre-activation block whose projection takes relu(bn1(x)) (kuangliu), or x itself."""

    def __init__(self, cin, cout, stride, shared=True):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(cin)
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.shared = shared
        if stride != 1 or cin != cout:
            self.shortcut = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False))

    def forward(self, x):
        out = F.relu(self.bn1(x))
        short = self.shortcut(out if self.shared else x) if hasattr(self, "shortcut") else x
        return self.conv2(F.relu(self.bn2(self.conv1(out)))) + short


class ResidualFunction(nn.Module):
    """A bottleneck in a Sequential, with a bias in no convolution (weiaicunzai)."""

    def __init__(self, cin, cout, stride):
        super().__init__()
        width = cout // 4
        self.residual_function = nn.Sequential(
            nn.Conv2d(cin, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False, groups=2),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, cout, 1, bias=False),
            nn.BatchNorm2d(cout),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or cin != cout:
            self.shortcut = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        return F.relu(self.residual_function(x) + self.shortcut(x))


class LeftRight(nn.Module):
    """Branch `left` and shortcut `right`, the convolutions with biases; a projection without a norm."""

    def __init__(self, cin, cout, stride):
        super().__init__()
        self.left = nn.Sequential(
            nn.Conv2d(cin, cout, 3, stride, 1), nn.BatchNorm2d(cout), nn.ReLU(), nn.Conv2d(cout, cout, 3, 1, 1)
        )
        self.left.append(nn.BatchNorm2d(cout))
        if stride != 1 or cin != cout:
            self.right = nn.Sequential(nn.Conv2d(cin, cout, 1, stride))

    def forward(self, x):
        return F.relu(self.left(x) + (self.right(x) if hasattr(self, "right") else x))


class ThirdConvolution(nn.Module):
    """The shortcut is `conv3`, which no name tells (d2l), with a norm or without."""

    def __init__(self, cin, cout, stride, norm=False):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1)
        self.conv3 = nn.Conv2d(cin, cout, 1, stride) if stride != 1 or cin != cout else None
        self.bn1, self.bn2 = nn.BatchNorm2d(cout), nn.BatchNorm2d(cout)
        if norm and self.conv3 is not None:
            self.bn3 = nn.BatchNorm2d(cout)

    def forward(self, x):
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        short = x if self.conv3 is None else self.conv3(x)
        return F.relu(out + (self.bn3(short) if hasattr(self, "bn3") else short))


class Net(nn.Module):
    """A stem, stages of blocks and a linear layer, under names of choice."""

    def __init__(self, block, widths=(8, 16, 24), num=2, *, stem=("conv1", "bn1"), stages="layer{}", head="linear"):
        super().__init__()
        self.names = ([*stem], [stages.format(stage + 1) for stage in range(len(widths))], head)
        self.add_module(stem[0], nn.Conv2d(3, widths[0], 3, 1, 1, bias=False))
        if len(stem) > 1 and stem[1]:
            self.add_module(stem[1], nn.BatchNorm2d(widths[0]))
        cin = widths[0]
        for stage, width in enumerate(widths):
            blocks = []
            for index in range(num):
                blocks.append(block(cin, width, 2 if stage and not index else 1))
                cin = width
            self.add_module(self.names[1][stage], nn.Sequential(*blocks))
        if len(stem) > 2:
            self.add_module(stem[2], nn.BatchNorm2d(cin))
        self.add_module(head, nn.Linear(cin, 5))

    def forward(self, x):
        stem, stages, head = self.names
        x = self.get_submodule(stem[0])(x)
        if len(stem) > 1 and stem[1]:
            x = F.relu(self.get_submodule(stem[1])(x))
        for stage in stages:
            x = self.get_submodule(stage)(x)
        if len(stem) > 2:
            x = F.relu(self.get_submodule(stem[2])(x))
        return self.get_submodule(head)(x.mean((2, 3)))


class FinalBlockStage(nn.Module):
    """A stage whose last block downsamples, in its second convolution; it keeps modules that it never calls."""

    def __init__(self, cin, cout, num=2):
        super().__init__()
        self.conv_block = self._branch(cin, cin, 1)
        self.residual_block = nn.ModuleList([copy.deepcopy(self.conv_block) for _ in range(num - 1)])
        self.bn = nn.BatchNorm2d(cout)
        self.final_block = self._branch(cin, cout, 2 if cout != cin else 1)
        self.new = cout - cin

    @staticmethod
    def _branch(cin, cout, stride):
        return nn.Sequential(
            nn.Conv2d(cin, cin, 3, 1, 1, bias=False),
            nn.BatchNorm2d(cin),
            nn.ReLU(),
            nn.Conv2d(cin, cout, 3, stride, 1, bias=False),
            nn.BatchNorm2d(cout),
        )

    def forward(self, x):
        for block in self.residual_block:
            x = F.relu(block(x) + x)
        short = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.new // 2, self.new // 2)) if self.new else x
        return F.relu(self.final_block(x) + short)


class FinalBlockNet(nn.Module):
    """Three such stages."""

    def __init__(self):
        super().__init__()
        self.first_layer = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.first_block, self.second_block = FinalBlockStage(8, 16), FinalBlockStage(16, 32)
        self.third_block = FinalBlockStage(32, 32)
        self.fc = nn.Linear(32, 5)

    def forward(self, x):
        x = self.third_block(self.second_block(self.first_block(F.relu(self.bn(self.first_layer(x))))))
        return self.fc(x.mean((2, 3)))


class DeepHead(nn.Module):
    """A net without normalisation: stride-2 stem, two linear layers on a map of 4x4 (for images of 16x16)."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 2, 1)
        self.layer1 = nn.Sequential(Bare(8, 16, 2), Bare(16, 16, 1))
        self.linear1, self.linear2 = nn.Linear(16 * 16, 20), nn.Linear(20, 5)

    def forward(self, x):
        x = self.layer1(F.relu(self.conv1(x))).flatten(1)
        return self.linear2(F.relu(self.linear1(x)))


class Bare(nn.Module):
    """A block without normalisation."""

    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(cin, cout, 3, stride, 1), nn.Conv2d(cout, cout, 3, 1, 1)
        self.shortcut = nn.Sequential(*([nn.Conv2d(cin, cout, 1, stride)] if stride != 1 else []))

    def forward(self, x):
        return F.relu(self.conv2(F.relu(self.conv1(x))) + self.shortcut(x))


def smooth_images(num, side=16, seed=0):
    """Random images with structure at several scales, roughly normalised."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.zeros(num, 3, side, side)
    for scale in (2, 4, 8, side):
        noise = torch.randn(num, 3, scale, scale, generator=generator)
        images += F.interpolate(noise, size=(side, side), mode="bilinear")
    return images / 2


def calibrated(network, seed=0):
    """Give a network random weights and the statistics that its normalisations then see on some images."""
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            fan_in = module.weight[0].numel()
            module.weight.data.normal_(0, (2 / fan_in) ** 0.5, generator=generator)
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
            module.weight.data.uniform_(0.5, 1.5, generator=generator)
            module.bias.data.uniform_(-0.3, 0.3, generator=generator)
    with torch.no_grad():
        network.train()(smooth_images(400, seed=1))
    return network.eval()


OTHERS = {
    "option A": lambda: Net(OptionA),
    "option A at the end": lambda: Net(partial(OptionA, padding="end"), stages="stage_{}", head="fc"),
    "option A by average": lambda: Net(partial(OptionA, padding="start", pool="average")),
    "option A, one block": lambda: Net(OptionA, num=1),
    "option A, one width": lambda: Net(OptionA, widths=(8, 8, 8)),
    "plain": lambda: Net(partial(OptionA, residual=False)),
    "shared pre-activation": lambda: Net(SharedPreactivation, stem=("conv1", "", "bn"), stages="block{}"),
    "raw pre-activation": lambda: Net(partial(SharedPreactivation, shared=False), stem=("conv", "", "norm")),
    "no last norm": lambda: Net(SharedPreactivation, stem=("conv1",)),
    "residual_function": lambda: Net(ResidualFunction, stem=("init_conv", "bn"), stages="conv{}_x", head="fc"),
    "left and right": lambda: Net(LeftRight, stages="stage{}"),
    "third convolution": lambda: Net(ThirdConvolution, stages="b{}"),
    "third convolution with norm": lambda: Net(partial(ThirdConvolution, norm=True)),
    "one width, pre-activation": lambda: Net(SharedPreactivation, widths=(8, 8), stem=("conv1",)),
    "one width, last norm": lambda: Net(SharedPreactivation, widths=(8, 8), stem=("conv1", "", "bn_last")),
    "one width, post-activation": lambda: Net(partial(OptionA, residual=False), widths=(8, 8)),
    "final block": FinalBlockNet,
    "two linear layers": DeepHead,
}


@pytest.fixture(scope="session")
def other():
    """Make one of the small networks above, with the statistics that a training would leave."""
    made = {}

    def make(name):
        if name not in made:
            made[name] = calibrated(OTHERS[name]())
        return made[name]

    return make


class Images(list):
    """Batches of smooth images."""

    image_shape = (3, 16, 16)

    def __init__(self):
        super().__init__([(smooth_images(100, seed=seed), torch.zeros(100, dtype=torch.int64)) for seed in (5, 6)])


@pytest.fixture(scope="session")
def images():
    return Images()


@pytest.fixture
def write(tmp_path):
    """Write a checkpoint: bytes as they are, anything else by torch.save."""

    def write(content, name="net.pt", **options):
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            torch.save(content, path, **options)
        return path

    return write
