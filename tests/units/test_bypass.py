import torch

from resprobe.units.bypass import Bypass


def test_odd_number_of_new_channels():
    bypass = Bypass.between((2, 4, 4), (5, 4, 4))
    assert bypass is not None
    widened = bypass(torch.ones(1, 2, 4, 4))
    # the one that is over comes last
    assert widened[0, :, 0, 0].tolist() == [0, 1, 1, 0, 0]


def test_subsampling_keeps_the_first_of_each_row():
    bypass = Bypass.between((1, 5, 4), (1, 3, 2))
    assert bypass is not None
    image = torch.arange(20.0).reshape(1, 1, 5, 4)
    assert bypass(image)[0, 0].tolist() == [[0, 2], [8, 10], [16, 18]]
