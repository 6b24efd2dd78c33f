import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resprobe.errors import ResprobeError
from resprobe.results.intervals import wilson_interval

Z = 1.959963984540054


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.lists(st.integers(0, n), max_size=4), st.just(n))))
def test_wilsons_formula(case):
    counts, num_images = case
    low, high = wilson_interval(np.array(counts, dtype=int), num_images)
    rate = np.array(counts) / num_images
    centre = (rate + Z**2 / (2 * num_images)) / (1 + Z**2 / num_images)
    half = Z / (1 + Z**2 / num_images) * np.sqrt(rate * (1 - rate) / num_images + Z**2 / (4 * num_images**2))
    np.testing.assert_allclose(low, centre - half, atol=1e-8)
    np.testing.assert_allclose(high, centre + half, atol=1e-8)
    assert ((low >= 0) & (low <= rate) & (rate <= high) & (high <= 1)).all()


def test_shape_is_kept_and_missing_counts_are_nan():
    low, high = wilson_interval([[0, -1, 5]], 5)
    assert low.shape == high.shape == (1, 3)
    assert np.isnan([low[0, 1], high[0, 1]]).all()
    assert low[0, 0] == 0
    assert high[0, 2] == 1


def test_a_single_count():
    low, high = wilson_interval(5, 10)
    assert low == pytest.approx(1 - high)


@pytest.mark.parametrize("counts", [[11], [-2], [0.5], ["3"]])
def test_bad_counts(counts):
    with pytest.raises(ResprobeError, match=r"num_wrong: expected integers from -1 \(not measured\) to 10, got"):
        wilson_interval(counts, 10)


def test_no_images():
    with pytest.raises(ResprobeError, match="num_images: expected at least 1 image, got 0"):
        wilson_interval([0], 0)
