"""Whatever happens during an analysis, the model and the global random state are as they were."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

import resprobe
from resprobe.data import open_data
from resprobe.errors import ResprobeError
from resprobe.results.catalogue import CATALOGUE, name_of

ASKED = {
    "lesion": (resprobe.lesion, {}),
    "lesion of named units": (resprobe.lesion, {"units": ["layer1.1.bn2", "layer2.1.bn2"], "shortcut": "outside"}),
    "lesion_curve": (resprobe.lesion_curve, {"num_deleted": [1, 2], "draws": 2}),
    "reorder": (resprobe.reorder, {"num_swaps": [1, 2], "draws": 2}),
    "paths": (resprobe.paths, {"estimator": "all", "repeats": 2, "samples": 2}),
    "gradients": (resprobe.gradients, {"noise": True}),
    "gradients in batch mode": (resprobe.gradients, {"bn_mode": "batch"}),
    "gradients of named units": (resprobe.gradients, {"units": ["layer1.1", "layer2.1"], "shortcut": "identity"}),
    "responses": (resprobe.responses, {}),
    "smoothness": (resprobe.smoothness, {"steps": [0.1]}),
    "curvature": (
        resprobe.curvature,
        {"bn_mode": "batch", "num_eigenvalues": 1, "num_probes": 2, "num_lanczos": 2, "tol": 0.5},
    ),
    "surface": (resprobe.surface, {"points": 2, "draws": 2}),
    "surface by the batch": (resprobe.surface, {"points": 2, "dims": 2, "bn_mode": "batch"}),
    "norm_lesion": (resprobe.norm_lesion, {}),
    "norm_lesion by the batch": (resprobe.norm_lesion, {"replacement": "batch"}),
    "norm_lesion recomputed": (resprobe.norm_lesion, {"replacement": "recomputed"}),
}
# an analysis that isn't listed is tried without options; `costs` times a batch whatever its labels and precision
ANALYSES = ASKED | {
    name: (getattr(resprobe, name), {})
    for name in map(name_of, CATALOGUE)
    if name in resprobe.__all__ and name not in (*ASKED, "costs")
}


def state_of(model):
    """Everything that an analysis could change, by value where it is a tensor."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "tensors": {name: tensor.detach().clone() for name, tensor in tensors.items()},
        "identities": {name: id(tensor) for name, tensor in tensors.items()},
        "requires_grad": {name: tensor.requires_grad for name, tensor in tensors.items()},
        "grad": {name: copy.deepcopy(tensor.grad) for name, tensor in tensors.items()},
        "modes": {name: module.training for name, module in model.named_modules()},
        "attributes": {name: sorted(vars(module)) for name, module in model.named_modules()},
        "hooks": {
            name: (dict(module._forward_hooks), dict(module._forward_pre_hooks), dict(module._backward_hooks))
            for name, module in model.named_modules()
        },
    }


def random_state():
    numpy_state = np.random.get_state()[1]  # noqa: NPY002 - the legacy global state is the one at risk
    return torch.get_rng_state().tolist(), numpy_state.tolist(), random.getstate()


def assert_same(before, after):
    for name in before["tensors"]:
        assert torch.equal(before["tensors"][name], after["tensors"][name]), name
        assert (before["grad"][name] is None) == (after["grad"][name] is None), name
        if before["grad"][name] is not None:
            assert torch.equal(before["grad"][name], after["grad"][name]), name
    for what in ("identities", "requires_grad", "modes", "attributes", "hooks"):
        assert before[what] == after[what], what


@pytest.fixture
def used_net(make_net):
    """A net in the middle of somebody's work: mixed modes, a frozen parameter, gradients, a hook."""
    net = make_net("resnet14").train()
    net.layer2.eval()
    net.conv1.weight.requires_grad_(False)
    net(torch.randn(4, 1, 8, 8)).sum().backward()
    net.layer1[0].register_forward_hook(lambda module, inputs, output: None)
    return net


@pytest.fixture
def digits():
    """Two batches: whatever lasts from one to the next is seen."""
    return open_data("digits", num_images=20, batch_size=12)


class Failing:
    """Batches that raise after the first one."""

    def __init__(self, error):
        self.error = error

    def __iter__(self):
        yield torch.zeros(2, 1, 8, 8), torch.zeros(2, dtype=torch.int64)
        raise self.error


@pytest.mark.parametrize("outcome", ["returns", "batches raise", "interrupted", "bad option", "bad label"])
@pytest.mark.parametrize("name", ANALYSES)
def test_model_is_as_it_was(used_net, digits, name, outcome):
    analysis, options = ANALYSES[name]
    batches = {
        "batches raise": Failing(RuntimeError("disk")),
        "bad label": [(torch.zeros(2, 1, 8, 8), torch.tensor([0, 99]))],
    }.get(outcome, digits)
    if outcome == "bad option":
        options = {**options, "precision": "float8"}
    if outcome == "interrupted":

        def interrupt(done, total):
            raise KeyboardInterrupt("stop")

        options = {**options, "progress": interrupt}
    expected = {
        "batches raise": (RuntimeError, "disk"),
        "interrupted": (KeyboardInterrupt, "stop"),
        "bad option": (ResprobeError, "float8"),
        "bad label": (ResprobeError, "99"),
    }
    model_before, random_before = state_of(used_net), random_state()
    tf32 = torch.backends.cudnn.allow_tf32
    if outcome == "returns":
        analysis(used_net, batches, **options)
    else:
        error, message = expected[outcome]
        with pytest.raises(error, match=message):
            analysis(used_net, batches, **options)
    assert_same(model_before, state_of(used_net))
    assert random_state() == random_before
    assert torch.backends.cudnn.allow_tf32 == tf32
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_forward_that_raises(used_net, digits):
    class Fragile(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = used_net

        def forward(self, x):
            if not isinstance(x, torch.fx.Proxy) and len(x) > 2:
                raise RuntimeError("too many")
            return self.net(x)

    model = Fragile()
    before = state_of(model)
    with pytest.raises(RuntimeError, match="too many"), resprobe.deleted(model, ["net.layer1.1"]):
        model(torch.zeros(3, 1, 8, 8))
    assert_same(before, state_of(model))
