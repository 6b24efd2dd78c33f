import functools
import math

import numpy as np
import pytest
import torch
import xarray as xr
from scipy.stats import kendalltau

import resprobe
from resprobe import results
from resprobe.engine import quick_convolutions
from resprobe.errors import ResprobeError


def with_units_moved(net, make_net, name, order):
    """The same net built anew, with the weights of unit order[i] at place i."""
    state = net.state_dict()
    places = [f"layer{stage}.{index}" for stage in (1, 2, 3) for index in range(3)]
    moved = dict(state)
    for place, source in zip(places, order, strict=True):
        for key in [key for key in state if key.startswith(f"{place}.")]:
            moved[key] = state[key.replace(place, places[source], 1)]
    other = make_net(name)
    other.load_state_dict(moved)
    return other.eval()


@pytest.mark.parametrize("worthwhile", [0, math.inf])
@pytest.mark.parametrize("name", ["resnet20", "preresnet20"])
def test_equals_a_net_with_the_weights_moved(make_net, digits, name, worthwhile, monkeypatch):
    monkeypatch.setattr(quick_convolutions, "WORTHWHILE", worthwhile)
    make_net = functools.partial(make_net, width=16)
    net = make_net(name)
    dataset = resprobe.reorder(net, digits, num_swaps=[1, 6], draws=3, seed=2)
    results.check(dataset)
    for swaps in (1, 6):
        for draw in range(3):
            row = dataset.sel(num_swaps=swaps, draw=draw)
            other = with_units_moved(net, make_net, name, row.order.values)
            with torch.inference_mode():
                correct = sum(int((other(x).argmax(1) == y).sum()) for x, y in digits)
            assert int(row.num_correct) == correct
            assert float(row.kendall_tau) == kendalltau(range(9), row.order.values).statistic


def test_original_order_is_the_baseline_bit_for_bit(make_net, digits):
    dataset = resprobe.reorder(make_net(), digits, num_swaps=[0], draws=2)
    assert (dataset.order == np.arange(9)).all()
    assert (dataset.kendall_tau == 1).all()
    assert (dataset.loss == dataset.baseline_loss).all()


def test_only_units_of_equal_shape_change_places(make_net, digits):
    order = resprobe.reorder(make_net(), digits, num_swaps=[50], draws=20).order.values.reshape(-1, 9)
    for places in ([0, 1, 2], [4, 5], [7, 8]):
        assert (np.sort(order[:, places]) == places).all()
        assert (order[:, places] != places).any()
    assert (order[:, [3, 6]] == [3, 6]).all()


def test_one_swap_moves_two_units(make_net, digits):
    order = resprobe.reorder(make_net(), digits, num_swaps=[1], draws=20).order.values[0]
    assert ((order != np.arange(9)).sum(1) == 2).all()


def test_draws_come_from_the_seed(make_net, digits):
    def order(**options):
        options = {"num_swaps": [3, 5], "draws": 3, "seed": 1, **options}
        return resprobe.reorder(make_net(), digits, **options).order

    one = order()
    xr.testing.assert_equal(one, order())
    assert not one.equals(order(seed=2))
    xr.testing.assert_equal(order(num_swaps=[5], draws=4).sel(draw=[0, 1, 2]), one.sel(num_swaps=[5]))


def test_plain_layers(make_net, digits):
    dataset = resprobe.reorder(make_net("plain20"), digits, num_swaps=[3], draws=2)
    assert dataset.sizes["unit"] == 18
    results.check(dataset)


def test_nothing_to_swap(make_net, digits):
    with pytest.raises(ResprobeError, match="expected two units of equal shape, got 3 units of different shapes"):
        resprobe.reorder(make_net("resnet8"), digits, num_swaps=[1])


def test_number_of_swaps_out_of_range(make_net, digits):
    with pytest.raises(ResprobeError, match="num_swaps: expected different whole numbers from 0 to"):
        resprobe.reorder(make_net(), digits, num_swaps=[-1])
