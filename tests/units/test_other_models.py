"""The models of torchvision and timm: deleting a unit through segments equals deleting it through hooks."""

import pytest
import timm
import torch
import torchvision
from torch import nn

import resprobe
from resprobe.errors import ResprobeError
from resprobe.units import Segments, find

# name: image size, units, first and last name
RESIDUAL = {
    "resnet18": (32, 8, "layer1.0", "layer4.1"),
    "resnet50": (32, 16, "layer1.0", "layer4.2"),
    "resnext50_32x4d": (32, 16, "layer1.0", "layer4.2"),
    "regnet_y_400mf": (32, 16, "trunk_output.block1.block1-0", "trunk_output.block4.block4-5"),
    "convnext_tiny": (64, 18, "features.1.0", "features.7.2"),
    "mobilenet_v2": (64, 10, "features.3", "features.16"),
    "vit_b_16": (
        *(32, 24, "encoder.layers.encoder_layer_0.self_attention"),
        "encoder.layers.encoder_layer_11.mlp",
    ),
    "timm:resnet50d": (32, 16, "layer1.0", "layer4.2"),
    "timm:resnetv2_50": (32, 16, "stages.0.blocks.0", "stages.3.blocks.2"),
    "timm:seresnet50": (32, 16, "layer1.0", "layer4.2"),
    "timm:mixer_s32_224": (64, 16, "blocks.0.mlp_tokens", "blocks.7.mlp_channels"),
}
PLAIN = {
    "vgg16_bn": (32, 14, "features.3", "classifier.3"),
}
# of models that are like one above and larger, units alone are looked at
RELATIVES = {
    "resnet34": (32, 16, "layer1.0", "layer4.2"),
    "resnet152": (32, 50, "layer1.0", "layer4.2"),
    "vgg16": (32, 14, "features.2", "classifier.3"),
}
PROBLEMS = {name: ["no bypass leads from 25088 to 4096 features"] for name in PLAIN}
RESNETS = ["resnet18", "resnet50", "resnext50_32x4d"]
# aggregated trees: residual units off the trunk
UNCHAINED = {
    "timm:dla34": ["level2.tree1", "level3.tree2.tree1", "level5.tree1"],
}
JOINLESS = ["densenet121", "googlenet"]
# each with another kind of branch, shortcut or normalisation; the larger relatives have the same
WITH_GRADIENTS = [
    *("resnet18", "resnext50_32x4d", "regnet_y_400mf", "convnext_tiny", "mobilenet_v2", "vit_b_16", "vgg16_bn"),
    *("timm:resnetv2_50", "timm:seresnet50", "timm:mixer_s32_224"),
]
# in one order in both tests, so that a model is made once for the two
NAMES = [*WITH_GRADIENTS, *(name for name in RESIDUAL | PLAIN if name not in WITH_GRADIENTS)]


def build(name, size):
    """Make a model whose every parameter matters: random weights, fitted normalisations, no layer scale of 0."""
    options = {"num_classes": 10}
    if name.startswith("timm:mixer"):
        options["img_size"] = size
    if name == "googlenet":
        options |= {"init_weights": False, "aux_logits": False}
    # the initialisation of the library takes longer than the tests; regnet computes its widths with tensors
    with torch.device("cpu" if name.startswith("regnet") else "meta"):
        if name.startswith("timm:"):
            model = timm.create_model(name.removeprefix("timm:"), **options)
        elif name == "vit_b_16":
            # narrower than the original, which is as deep
            model = torchvision.models.VisionTransformer(size, 16, 12, 12, hidden_dim=96, mlp_dim=384, **options)
        else:
            model = torchvision.models.get_model(name, weights=None, **options)
    model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.reset_running_stats()
            module.momentum = None
    # a prime number of random numbers over and over is random enough, and quick for large layers
    noise = torch.rand(1_000_003, generator=generator) * 2 - 1
    for parameter in model.parameters():
        if parameter.ndim > 1 and parameter.shape[1] > 1:
            limit = (6 / parameter[0].numel()) ** 0.5
            repeats = parameter.numel() // len(noise) + 1
            parameter.data.copy_(noise.repeat(repeats)[: parameter.numel()].view_as(parameter)).mul_(limit)
        else:
            parameter.data.uniform_(0.3, 1, generator=generator)
    with torch.no_grad():
        model.train()(torch.randn(4, 3, size, size, generator=generator))
    return model.eval()


@pytest.fixture(scope="module")
def named(request):
    """Give a name, its model and two images; the tests of a name follow each other."""
    size = (RESIDUAL | PLAIN)[request.param][0]
    return request.param, build(request.param, size), images(size)


def images(size):
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


def some_units(units):
    """Choose the first unit, the first of a later stage, which changes the shape in many a net, and the last."""
    starts = sorted({unit.stage: index for index, unit in reversed(list(enumerate(units)))}.values())
    middle = starts[len(starts) // 2] or len(units) // 2
    return [0, middle, len(units) - 1]


def delete_through_segments(segments, index, x):
    x = segments.stem(x)
    for position, unit in enumerate(segments.units):
        x = unit.forward_deleted(x) if position == index else unit.forward(x)
    return segments.head(x)


def resnet_without(net, gone, x):
    x = net.maxpool(net.relu(net.bn1(net.conv1(x))))
    for stage in (1, 2, 3, 4):
        for index, block in enumerate(getattr(net, f"layer{stage}")):
            if f"layer{stage}.{index}" in gone:
                x = torch.relu(x if block.downsample is None else block.downsample(x))
            else:
                x = block(x)
    return net.fc(net.avgpool(x).flatten(1))


def assert_close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("named", NAMES, indirect=True)
def test_segments_equal_hooks(named):
    name, net, x = named
    _, num_units, first, last = (RESIDUAL | PLAIN)[name]
    segments = find(net, x)
    assert isinstance(segments, Segments)
    assert (len(segments.units), segments.units[0].name, segments.units[-1].name) == (num_units, first, last)
    assert {unit.hook_problem for unit in segments.units} == {""}
    assert [unit.status for unit in segments.units if unit.status != "ok"] == PROBLEMS.get(name, [])
    shortcuts = [unit.name for unit in segments.units if unit.shortcut == "projection"]
    if name in PLAIN:
        assert {unit.kind for unit in segments.units} == {"plain"}
    elif name in RESNETS:
        assert shortcuts == [name for name, module in net.named_modules() if getattr(module, "downsample", None)]
    else:
        assert {unit.shortcut for unit in segments.units} <= {"identity", "projection"}
    with torch.inference_mode():
        intact = net(x)
        assert_close(segments.forward(x), intact)
        for index in some_units(segments.units):
            unit = segments.units[index]
            if unit.status == "ok":
                deleted = delete_through_segments(segments, index, x)
                assert (deleted - intact).abs().max() > 1e-3 * intact.abs().max(), unit.name
                with resprobe.deleted(net, [unit.name]):
                    assert_close(net(x), deleted)
                if name in RESNETS:
                    assert_close(resnet_without(net, [unit.name], x), deleted)
        torch.testing.assert_close(net(x), intact, rtol=0, atol=0)


@pytest.mark.parametrize("name", RELATIVES)
def test_units_of_relatives(name):
    size, num_units, first, last = RELATIVES[name]
    net, x = build(name, size), images(size)
    segments = find(net, x)
    assert isinstance(segments, Segments)
    assert (len(segments.units), segments.units[0].name, segments.units[-1].name) == (num_units, first, last)
    assert {unit.hook_problem for unit in segments.units} == {""}
    with torch.inference_mode():
        assert_close(segments.forward(x), net(x))


@pytest.mark.parametrize("name", UNCHAINED)
def test_units_off_the_trunk(name):
    net, x = build(name, 64), images(64)
    found = find(net, x)
    with torch.inference_mode():
        intact = net(x)
        for index in found.select(UNCHAINED[name]):
            unit = found.units[index]
            assert (unit.kind, unit.status) == ("residual", "ok")
            deleted = found.forward(x, deleted=[index])
            assert (deleted - intact).abs().max() > 1e-3 * intact.abs().max(), unit.name
            with resprobe.deleted(net, [unit.name]):
                assert_close(net(x), deleted)


@pytest.mark.parametrize("name", JOINLESS)
def test_models_that_only_concatenate(name):
    net = build(name, 64)
    with pytest.raises(ResprobeError, match=r"got no residual units: its joins are concatenations; to delete modules"):
        find(net, images(64))
    with pytest.raises(ResprobeError, match="no residual units: its joins are concatenations"):
        resprobe.deleted(net, ["conv1"]).__enter__()


@pytest.mark.parametrize("named", WITH_GRADIENTS, indirect=True)
def test_path_lengths_add_up_to_the_gradient(named):
    name, net, x = named
    num_units = (RESIDUAL | PLAIN)[name][1]
    x = x[:1].clone().requires_grad_()
    label = torch.tensor([3])
    result = resprobe.paths(net, [(x.detach(), label)])
    (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(net(x), label), x)
    assert float(result.full_grad_norm) == pytest.approx(float(gradient.norm()), rel=1e-3)
    assert float(result.completeness_error) < 1e-4
    assert result.sizes["path_length"] == (1 if name in PLAIN else num_units + 1)
