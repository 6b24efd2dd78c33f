"""Costs of the networks of the papers: parameters, multiply-adds, activation memory and measured time per image.

    python analyses/costs.py            VGG-16 and -19, ResNet-18 to -152, the CIFAR networks of 20 to 1,202 layers
    python analyses/costs.py --quick    the small ones, to see that everything works

VGG and ResNet are torchvision's modules, ResNet-50 to -152 also with the stride where the paper has it: in the first
1x1 convolution of a block (`-v1`), not in the 3x3 one. Nothing is trained and no weights are fetched. The papers'
numbers are those of table 2 of Simonyan and Zisserman 2014 (arXiv 1409.1556) and tables 1 and 6 of He et al. 2015
(arXiv 1512.03385), who count multiply-adds as FLOPs. The measurement of each network is kept in `--work`, the
joint result in `--out`, the figure in `--figures`.
"""

import argparse
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torchvision
import xarray as xr
from rich.console import Console
from studies import parse_study, run_study, study_parser, with_time_left
from torch import nn
from torchvision.models.resnet import Bottleneck

import resprobe
from resprobe import plots, results
from resprobe.errors import ResprobeError
from resprobe.showing.tables import show

IMAGENET, CIFAR = (3, 224, 224), (3, 32, 32)
NAN = float("nan")


class Network(NamedTuple):
    """A network, the papers' numbers of it in millions of parameters and billions of multiply-adds, its images."""

    paper_params: float
    paper_multiply_adds: float
    shape: tuple[int, int, int]
    work: float  # about, in billions of multiply-adds, for the time that is left


NETWORKS = {
    "vgg16": Network(138, 15.3, IMAGENET, 15.5),
    "vgg19": Network(144, 19.6, IMAGENET, 19.6),
    "resnet18": Network(NAN, 1.8, IMAGENET, 1.8),
    "resnet34": Network(NAN, 3.6, IMAGENET, 3.7),
    "resnet50": Network(NAN, NAN, IMAGENET, 4.1),
    "resnet101": Network(NAN, NAN, IMAGENET, 7.8),
    "resnet152": Network(NAN, NAN, IMAGENET, 11.5),
    "resnet50-v1": Network(NAN, 3.8, IMAGENET, 3.9),
    "resnet101-v1": Network(NAN, 7.6, IMAGENET, 7.6),
    "resnet152-v1": Network(NAN, 11.3, IMAGENET, 11.3),
    "cifar-resnet20": Network(0.27, NAN, CIFAR, 0.04),
    "cifar-resnet32": Network(0.46, NAN, CIFAR, 0.07),
    "cifar-resnet44": Network(0.66, NAN, CIFAR, 0.1),
    "cifar-resnet56": Network(0.85, NAN, CIFAR, 0.13),
    "cifar-resnet110": Network(1.7, NAN, CIFAR, 0.26),
    "cifar-resnet1202": Network(19.4, NAN, CIFAR, 2.8),
    "cifar-plain20": Network(NAN, NAN, CIFAR, 0.04),
    "cifar-plain56": Network(NAN, NAN, CIFAR, 0.13),
    "cifar-plain110": Network(NAN, NAN, CIFAR, 0.26),
}
QUICK = ("resnet18", "cifar-resnet20", "cifar-plain20")


def make_network(name: str) -> nn.Module:
    """Build a network, in evaluation mode; weights are random, they decide no cost."""
    if name.startswith("cifar-"):
        return resprobe.build(resprobe.parse_architecture(name.removeprefix("cifar-")), seed=0).eval()
    builder: Callable[..., nn.Module] = getattr(torchvision.models, name.removesuffix("-v1"))
    network = builder(weights=None).eval()
    if name.endswith("-v1"):
        for block in network.modules():
            if isinstance(block, Bottleneck):
                block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride
    return network


def measure(name: str, arguments: argparse.Namespace) -> xr.Dataset:
    """Measure a network, or read its result if it is there already."""
    repeats, batch_size = arguments.repeats, arguments.batch_size
    batch = (torch.zeros(batch_size, *NETWORKS[name].shape), torch.zeros(batch_size, dtype=torch.int64))
    given: dict[str, Any] = {"repeats": repeats, "batch_size": batch_size}
    model = provenance([name])
    data = {"data": "zeros", "data_sha256": digest([str(batch[0].shape)]), "num_images": batch_size}

    def compute() -> xr.Dataset:
        dataset = resprobe.costs(make_network(name).to(arguments.device), [batch], repeats=repeats, provenance=model)
        dataset.attrs |= data
        return dataset

    dataset, _ = results.find_or_compute(
        path_of(name, arguments), "costs", compute, options=given, model=model, data=data, overwrite=arguments.overwrite
    )
    return dataset


def path_of(name: str, arguments: argparse.Namespace) -> Path:
    """Name the file that keeps the measurement of a network."""
    settings = f"{arguments.threads}-{arguments.batch_size}-{arguments.repeats}"
    settings += "" if arguments.device.type == "cpu" else f"-{arguments.device.type}"
    work: Path = arguments.work
    return work / "costs" / f"costs-{name}-{settings}.nc"


def provenance(names: list[str]) -> dict[str, Any]:
    """Say which networks these are; their names fix all that decides the costs."""
    return {
        "checkpoint": names[0] if len(names) == 1 else "",
        "checkpoint_sha256": digest([*names, torchvision.__version__]),
        "architecture": names[0] if len(names) == 1 else f"{len(names)} networks",
    }


def digest(texts: list[str]) -> str:
    """Hash texts."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def join(measured: dict[str, xr.Dataset]) -> xr.Dataset:
    """Put the measurements into one result, beside the papers' numbers."""
    names = list(measured)
    joined = xr.concat(list(measured.values()), "checkpoint", combine_attrs="override")
    joined = joined.assign_coords(checkpoint=names)
    for variable, unit in (("num_params", 1e6), ("multiply_adds", 1e9)):
        papers = [getattr(NETWORKS[name], f"paper_{variable.removeprefix('num_')}") * unit for name in names]
        joined[f"paper_{variable}"] = ("checkpoint", papers)
    attrs = joined.attrs
    joined = results.label(joined, "costs")
    joined.attrs = {**attrs, **provenance(names)}
    return joined


def statements(joined: xr.Dataset) -> list[str]:
    """Say what was measured."""
    value = {name: joined.sel(checkpoint=name) for name in map(str, joined.checkpoint.values)}
    lines = []
    if {"vgg19", "resnet152", "resnet34"} <= set(value):
        vgg, deep = value["vgg19"], value["resnet152"]
        lines.append(
            f"ResNet-152 takes {float(deep.multiply_adds / vgg.multiply_adds):.0%} of the multiply-adds of VGG-19 and "
            f"{float(deep.num_params / vgg.num_params):.0%} of its parameters, but "
            f"{float(deep.seconds_per_image / vgg.seconds_per_image):.1f} times its time per image and "
            f"{float(deep.activation_bytes / vgg.activation_bytes):.1f} times its activation memory."
        )
    if {"resnet50", "resnet50-v1"} <= set(value):
        more = float(value["resnet50"].multiply_adds / value["resnet50-v1"].multiply_adds) - 1
        lines.append(
            f"The stride in the 3x3 convolution costs ResNet-50 {more:.1%} more multiply-adds than the paper's."
        )
    for depth in (20, 56, 110):
        pair = [f"cifar-resnet{depth}", f"cifar-plain{depth}"]
        if set(pair) <= set(value):
            residual, plain = (value[name] for name in pair)
            lines.append(
                f"CIFAR, {depth} layers: shortcuts add {int(residual.num_params - plain.num_params)} parameters and "
                f"{int(residual.multiply_adds - plain.multiply_adds)} multiply-adds; time per image "
                f"{float(residual.seconds_per_image / plain.seconds_per_image):.2f} times the plain network's."
            )
    return lines


def main() -> None:
    """Measure every network, print the table, draw."""
    parser = study_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="timed passes of each network")
    parser.add_argument("--batch-size", type=int, default=2, help="images of a timed pass")
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch")
    arguments = parse_study(parser)
    for option in ("repeats", "batch_size", "threads"):
        if getattr(arguments, option) < 1:
            name = option.replace("_", " ")
            raise ResprobeError(f"{name}: expected 1 or more, got {getattr(arguments, option)}; choose another")
    torch.set_num_threads(arguments.threads)
    names = list(QUICK if arguments.quick else NETWORKS)
    passes = (arguments.repeats + 1) * arguments.batch_size
    work = sum(NETWORKS[name].work for name in names) * passes
    print(
        f"{len(names)} networks, {work:,.0f} billion multiply-adds, "
        f"about {work / 15 + 3 * len(names):.0f} s at 15 a second"
    )
    measured = {
        name: measure(name, arguments)
        for name in with_time_left(
            names, str, lambda name: 0.0 if path_of(name, arguments).exists() else NETWORKS[name].work * passes + 20
        )
    }
    joined = join(measured)
    results.save(joined, arguments.out / "costs.nc", overwrite=True)
    plots.save_figure(plots.plot(joined), arguments.figures / "costs.png")
    show(joined, Console(width=max(Console().width, 80)))
    print(*statements(joined), sep="\n")


if __name__ == "__main__":
    run_study(main)
