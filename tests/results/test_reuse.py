"""A question that was answered before is not computed again."""

import numpy as np
import pytest

from resprobe.results import find_or_compute, label, make_attrs
from tests.synthetic_results import synthetic_result

MODEL = {"checkpoint": "a.pt", "checkpoint_sha256": "a"}
DATA = {"data": "digits", "data_sha256": "d", "split": "test", "num_images": 500}


@pytest.fixture
def answer():
    """Give a result that says which options, model and data it has."""

    def make(options, model=MODEL):
        dataset = label(synthetic_result("lesion").drop_attrs(), "lesion")
        dataset.attrs = make_attrs(
            "lesion", title="", references="", options=options, model=model, data=DATA, device="cpu"
        )
        return dataset

    return make


def test_the_second_time_it_is_read(tmp_path, answer):
    path, calls = tmp_path / "a.nc", []

    def compute():
        calls.append(1)
        return answer({"by": "layer"})

    asked = {"options": {"by": "layer"}, "model": MODEL, "data": DATA}
    first, there = find_or_compute(path, "lesion", compute, **asked)
    again, there_again = find_or_compute(path, "lesion", compute, **asked)
    assert (there, there_again, len(calls)) == (False, True, 1)
    np.testing.assert_array_equal(first.num_correct, again.num_correct)


@pytest.mark.parametrize(
    ("options", "model", "message"),
    [
        ({"by": "block"}, MODEL, "by: expected 'layer', got 'block'"),
        ({"draws": 1}, MODEL, "by: expected 'layer', got nothing; draws: expected nothing, got 1"),
        ({"by": "layer"}, MODEL | {"checkpoint_sha256": "b"}, "checkpoint_sha256: expected 'a', got 'b'"),
    ],
)
def test_an_analysis_that_answers_another_question_is_told_which(tmp_path, answer, options, model, message):
    path = tmp_path / "a.nc"
    with pytest.raises(LookupError) as error:
        find_or_compute(path, "lesion", lambda: answer(options, model), options={"by": "layer"}, model=MODEL, data=DATA)
    assert message in str(error.value)
    assert not path.exists()
