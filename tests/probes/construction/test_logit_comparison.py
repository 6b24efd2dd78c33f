import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from resprobe import compare_logits, results
from resprobe.errors import ResprobeError

BATCHES = [
    (torch.randn(20, 1, 8, 8, generator=torch.Generator().manual_seed(seed)), torch.arange(20) % 10) for seed in (1, 2)
]


class Shifted(nn.Module):
    """The logits of another network, one of them raised."""

    def __init__(self, network: nn.Module, shift: float) -> None:
        super().__init__()
        self.network, self.shift = network, shift

    def forward(self, x):
        logits = self.network(x)
        return torch.cat([logits[:, :3] + self.shift, logits[:, 3:]], dim=1)


class TestValues:
    def test_against_the_naive_way(self, make_net):
        reference, model = make_net("resnet8"), make_net("plain8")
        result = compare_logits(reference, model, BATCHES)
        assert results.check(result) is None
        images, labels = (torch.cat(parts) for parts in zip(*BATCHES, strict=True))
        with torch.no_grad():
            before, after = reference(images), model(images)
        row = result.sel(bn_mode="running")
        assert float(row.logit_change) == pytest.approx(float((before - after).abs().max()), rel=1e-5)
        assert float(row.largest_logit) == pytest.approx(float(before.abs().max()), rel=1e-5)
        assert int(row.num_changed) == int((before.argmax(1) != after.argmax(1)).sum())
        assert float(row.loss) == pytest.approx(float(F.cross_entropy(after, labels)), rel=1e-5)
        assert float(row.reference_error) == float((before.argmax(1) != labels).double().mean())
        assert int(row.num_identical) == 0
        for name in ("loss", "error"):
            swapped = compare_logits(model, reference, BATCHES)
            np.testing.assert_array_equal(swapped[f"reference_{name}"], result[name])

    def test_batch_statistics_are_those_of_each_batch(self, make_net):
        reference, model = make_net("resnet8"), make_net("plain8")
        change = 0.0
        for images, _ in BATCHES:
            with torch.no_grad():
                before, after = (copy.deepcopy(net).train()(images) for net in (reference, model))
            change = max(change, float((before - after).abs().max()))
        result = compare_logits(reference, model, BATCHES)
        assert float(result.logit_change.sel(bn_mode="batch")) == pytest.approx(change, rel=1e-4)

    def test_a_known_change(self, make_net):
        net = make_net("resnet8")
        result = compare_logits(net, Shifted(net, 0.25), BATCHES)
        np.testing.assert_allclose(result.logit_change, 0.25, rtol=1e-5)
        assert (result.num_identical == 0).all()

    def test_without_normalisation_there_is_one_mode(self, make_net):
        net = make_net("plain8", norm="none")
        result = compare_logits(net, net, BATCHES)
        assert result.bn_mode.values.tolist() == ["none"]
        assert int(result.num_identical[0]) == int(result.num_images) == 40

    def test_what_is_not_finite_shows(self, make_net):
        net = make_net("plain8", norm="none")
        broken = copy.deepcopy(net)
        broken.linear.bias.data[0] = torch.nan
        assert np.isnan(compare_logits(net, broken, BATCHES).logit_change).all()

    def test_models_are_not_touched(self, make_net):
        nets = make_net("resnet8"), make_net("plain8")
        before = [copy.deepcopy(net.state_dict()) for net in nets]
        compare_logits(*nets, BATCHES)
        for net, state in zip(nets, before, strict=True):
            assert not net.training
            assert all(torch.equal(state[name], tensor) for name, tensor in net.state_dict().items())


class TestRefusals:
    def test_other_classes(self, make_net):
        with pytest.raises(ResprobeError, match=r"model: expected logits of shape \(20, 10\) .*, got \(20, 12\)"):
            compare_logits(make_net("resnet8"), make_net("resnet8", num_classes=12), BATCHES)

    def test_a_single_image(self, make_net):
        with pytest.raises(ResprobeError, match="batch: expected 2 images or more"):
            compare_logits(make_net("resnet8"), make_net("resnet8"), [(BATCHES[0][0][:1], BATCHES[0][1][:1])])
