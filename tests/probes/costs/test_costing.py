import pytest
import torch
from torch import nn

import resprobe
from resprobe import results
from resprobe.errors import ResprobeError
from resprobe.probes.costs.costing import activation_bytes, count_params, multiply_adds, seconds_per_pass


@pytest.fixture
def small():
    """One convolution from 1 to 4 channels on 8x8 images, a ReLU, a linear layer."""
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))


BATCH = (torch.ones(2, 1, 8, 8), torch.zeros(2, dtype=torch.int64))


def test_counts_by_hand(small):
    assert count_params(small) == 4 * 9 + 4 + 256 * 10 + 10
    assert multiply_adds(small, (1, 8, 8)) == 64 * 9 * 4 + 256 * 10


def test_activation_memory_by_hand(small):
    # the image for the convolution's weights; the ReLU's output for itself and, as a view, for the linear layer
    assert activation_bytes(small, (1, 8, 8)) == 4 * (64 + 4 * 64)
    # a normalisation keeps its input too
    normalised = nn.Sequential(small[0], nn.BatchNorm2d(4), *small[1:])
    assert activation_bytes(normalised, (1, 8, 8)) == 4 * (64 + 2 * 4 * 64)
    # dropout keeps a mask or the scaled mask, in training mode only
    assert activation_bytes(nn.Sequential(*small, nn.Dropout()), (1, 8, 8)) > 4 * (64 + 4 * 64)


def test_passes_are_in_evaluation_mode_on_a_copy(small):
    seen = []

    class Watching(nn.Module):
        def forward(self, x):
            seen.append((self.training, torch.is_inference_mode_enabled()))
            return x

    small.append(Watching())
    small.train()
    assert len(seconds_per_pass(small, BATCH[0], 3)) == 3
    assert seen == [(False, True)] * 4
    assert small.training


def test_result(small):
    dataset = resprobe.costs(small, [BATCH], repeats=3)
    results.check(dataset)
    assert int(dataset.num_params) == count_params(small)
    assert int(dataset.multiply_adds) == multiply_adds(small, (1, 8, 8))
    assert int(dataset.activation_bytes) == activation_bytes(small, (1, 8, 8))
    assert 0 < float(dataset.seconds_per_image) <= float(dataset.seconds_per_image_median)
    assert dataset.attrs["num_threads"] == torch.get_num_threads()
    with pytest.raises(ResprobeError, match="repeats: expected a whole number from 1, got 0"):
        resprobe.costs(small, [BATCH], repeats=0)
