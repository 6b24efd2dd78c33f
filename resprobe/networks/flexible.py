"""Networks built from a blueprint, with the module names of the checkpoint that it was read from."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resprobe.errors import ResprobeError
from resprobe.networks.blueprint import BlockPlan, Blueprint, Choices, Convolution, Linear, Norm

MakeNorm = Callable[[Norm], nn.BatchNorm2d]


class FlexibleBlock(nn.Module):
    """A basic or bottleneck block, before or after activation, with or without a shortcut.

    Post-activation: y = relu(shortcut(x) + norm(conv(... relu(norm(conv(x)))))).
    Pre-activation: y = shortcut(a) + conv(relu(norm(... conv(relu(norm(x)))))), a = x or relu(norm(x)).

    Args:
        plan: The block's modules.
        choices: What the checkpoint doesn't show.
        is_first: Whether it is the first block of its stage.
        is_first_of_all: Whether it is the first block of the network.
    """

    def __init__(self, plan: BlockPlan, choices: Choices, *, is_first: bool, is_first_of_all: bool) -> None:
        super().__init__()
        start = len(plan.name) + 1
        self._convolutions = [convolution.name[start:] for convolution in plan.convolutions]
        self._norms = [norm.name[start:] for norm in plan.norms]
        projection = (plan.projection, plan.projection_norm)
        self._projection = [part.name[start:] for part in projection if part is not None]
        self._plan, self._choices = plan, choices
        self._preactivates_shortcut = (
            choices.preactivation
            and {
                "raw": False,
                "projections": plan.projection is not None,
                "firsts": is_first,
                "first": is_first_of_all,
                "all": True,
            }[choices.shortcut_input]
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, out_channels, H', W'), H' = ceil(H / stride).

        Args:
            x: Activations of shape (N, in_channels, H, W).

        Returns:
            The block's output.
        """
        return self._forward_preactivation(x) if self._choices.preactivation else self._forward_postactivation(x)

    def _forward_postactivation(self, x: Tensor) -> Tensor:
        branch = x
        for index, convolution in enumerate(self._convolutions):
            branch = self.get_submodule(convolution)(F.relu(branch) if index else branch)
            if self._norms:
                branch = self.get_submodule(self._norms[index])(branch)
        if self._choices.shortcut != "none":
            branch = branch + self._shortcut(x)
        return F.relu(branch) if self._choices.final_relu else branch

    def _forward_preactivation(self, x: Tensor) -> Tensor:
        branch = x
        for index, convolution in enumerate(self._convolutions):
            if self._norms:
                branch = self.get_submodule(self._norms[index])(branch)
            if index or self._choices.first_relu:
                branch = F.relu(branch)
            if index == 0 and self._preactivates_shortcut:
                x = branch
            branch = self.get_submodule(convolution)(branch)
        if len(self._norms) > len(self._convolutions):
            branch = self.get_submodule(self._norms[-1])(branch)
        return branch if self._choices.shortcut == "none" else branch + self._shortcut(x)

    def _shortcut(self, x: Tensor) -> Tensor:
        plan = self._plan
        if self._projection:
            if plan.projection_pools and plan.stride > 1:
                x = F.avg_pool2d(x, 2, 2, ceil_mode=True, count_include_pad=False)
            for name in self._projection:
                x = self.get_submodule(name)(x)
            return x
        if plan.stride > 1:
            x = x[:, :, ::2, ::2] if self._choices.subsampling == "slice" else F.avg_pool2d(x, 2, 2, ceil_mode=True)
        new = plan.out_channels - plan.in_channels
        if new:
            before = {"both": new // 2, "end": 0, "start": new}[self._choices.padding]
            x = F.pad(x, (0, 0, 0, 0, before, new - before))
        return x


class FlexibleNetwork(nn.Module):
    """A plain or residual network as a blueprint says, for any names of modules.

    The keys of its `state_dict` are those of the checkpoint that the blueprint was read from.

    Args:
        blueprint: The network's facts.
        make_norm: Makes the normalisations; by default plain batch normalisation.
    """

    def __init__(self, blueprint: Blueprint, make_norm: MakeNorm | None = None) -> None:
        super().__init__()
        make_norm = make_norm or _batch_norm
        self.architecture = blueprint
        choices = blueprint.choices
        for index, (convolution, norm) in enumerate(blueprint.stem):
            stride = choices.stem_stride if index == 0 else 1
            _place(self, convolution.name, _convolution(convolution, stride))
            if norm is not None:
                _place(self, norm.name, make_norm(norm))
        for index, plan in enumerate(blueprint.blocks):
            is_first = index == 0 or blueprint.blocks[index - 1].stage != plan.stage
            block = FlexibleBlock(plan, choices, is_first=is_first, is_first_of_all=index == 0)
            _place(self, plan.name, block)
            _fill(block, plan, choices, make_norm)
        if blueprint.head_norm is not None:
            _place(self, blueprint.head_norm.name, make_norm(blueprint.head_norm))
        for linear in blueprint.head:
            _place(self, linear.name, _linear(linear))

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits.

        Args:
            x: Normalised images of shape (N, in_channels, H, W).

        Returns:
            Logits of shape (N, num_classes).
        """
        blueprint, choices = self.architecture, self.architecture.choices
        for index, (convolution, norm) in enumerate(blueprint.stem):
            x = self.get_submodule(convolution.name)(x)
            if norm is not None:
                x = self.get_submodule(norm.name)(x)
            # a pre-activation net starts with a bare convolution: its first block has the ReLU
            if norm is not None or not choices.preactivation or index + 1 < len(blueprint.stem):
                x = F.relu(x)
        if choices.stem_pool:
            x = F.max_pool2d(x, 3, 2, 1)
        for plan in blueprint.blocks:
            x = self.get_submodule(plan.name)(x)
        if blueprint.head_norm is not None:
            x = self.get_submodule(blueprint.head_norm.name)(x)
            x = F.relu(x) if choices.head_relu else x
        x = F.adaptive_avg_pool2d(x, blueprint.head_side)
        if not blueprint.head[0].is_convolution:
            x = x.flatten(1)
        for index, linear in enumerate(blueprint.head):
            x = self.get_submodule(linear.name)(F.relu(x) if index else x)
        return x.flatten(1) if blueprint.head[0].is_convolution else x


def build_flexible(blueprint: Blueprint, make_norm: MakeNorm | None = None) -> FlexibleNetwork:
    """Build the network of a blueprint with arbitrary weights, leaving the global random state untouched.

    Args:
        blueprint: The network's facts.
        make_norm: Makes the normalisations; by default plain batch normalisation.

    Returns:
        The network on the CPU in evaluation mode.
    """
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        return FlexibleNetwork(blueprint, make_norm).eval()


def _fill(block: FlexibleBlock, plan: BlockPlan, choices: Choices, make_norm: MakeNorm) -> None:
    """Put a block's modules where their names say."""
    start = len(plan.name) + 1
    for index, convolution in enumerate(plan.convolutions, start=1):
        # a block has its stride in one convolution, never beyond its last one
        has_stride = index == min(choices.stride_place, len(plan.convolutions))
        _place(block, convolution.name[start:], _convolution(convolution, plan.stride if has_stride else 1))
    for norm in plan.norms:
        _place(block, norm.name[start:], make_norm(norm))
    if plan.projection is not None:
        stride = 1 if plan.projection_pools else plan.stride
        _place(block, plan.projection.name[start:], _convolution(plan.projection, stride))
    if plan.projection_norm is not None:
        _place(block, plan.projection_norm.name[start:], make_norm(plan.projection_norm))


def _place(root: nn.Module, path: str, module: nn.Module) -> None:
    """Register a module under a dotted name, making the containers on the way."""
    *parents, name = path.split(".")
    for parent in parents:
        if parent not in root._modules:
            _add(root, parent, nn.Module(), path)
        root = root.get_submodule(parent)
    _add(root, name, module, path)


def _add(root: nn.Module, name: str, module: nn.Module, path: str) -> None:
    try:
        root.add_module(name, module)
    except KeyError as error:
        raise ResprobeError(
            f"module {path}: expected a name that PyTorch allows for a module, got {name!r}; rename the key"
        ) from error


def _convolution(plan: Convolution, stride: int) -> nn.Conv2d:
    return nn.Conv2d(
        plan.in_channels,
        plan.out_channels,
        plan.kernel,
        stride=stride,
        padding=(plan.kernel[0] // 2, plan.kernel[1] // 2),
        groups=plan.groups,
        bias=plan.has_bias,
    )


def _batch_norm(plan: Norm) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(plan.channels, affine=plan.is_affine)


def _linear(plan: Linear) -> nn.Module:
    if plan.is_convolution:
        return nn.Conv2d(plan.in_features, plan.out_features, 1, bias=plan.has_bias)
    return nn.Linear(plan.in_features, plan.out_features, bias=plan.has_bias)
