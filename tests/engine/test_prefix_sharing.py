import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resprobe.engine.prefix_sharing import deleting, intact, run_plans
from resprobe.units import Segments


class CountingUnit:
    """y = x + 2 ** index, or x when deleted; counts how often it runs."""

    def __init__(self, index: int) -> None:
        self.index, self.runs = index, 0

    def forward(self, x):
        self.runs += 1
        return 3 * x + 2**self.index

    def forward_deleted(self, x):
        return x


def segments(num_units):
    return Segments(lambda x: x, tuple(CountingUnit(index) for index in range(num_units)), lambda x: x)


def run_alone(plan, x):
    for index, kept in plan:
        x = 3 * x + 2**index if kept else x
    return x


def test_single_deletions_cost_half():
    num_units = 10
    chain = segments(num_units)
    plans = [intact(num_units), *(deleting(num_units, [index]) for index in range(num_units))]
    results = list(run_plans(chain, plans, torch.ones(1)))
    assert len(results) == num_units + 1
    # the intact pass, and behind the i-th deletion the n - i - 1 units that follow
    assert sum(unit.runs for unit in chain.units) == num_units + num_units * (num_units - 1) // 2


@settings(max_examples=60)
@given(st.data())
def test_every_plan_gives_what_it_gives_alone(data):
    num_units = data.draw(st.integers(1, 6))
    step = st.tuples(st.integers(0, num_units - 1), st.booleans())
    plan = st.lists(step, min_size=num_units, max_size=num_units).map(tuple)
    plans = data.draw(st.lists(plan, min_size=1, max_size=20))
    x = torch.ones(1, dtype=torch.float64)
    results = {}
    for members, y in run_plans(segments(num_units), plans, x):
        for member in members:
            assert member not in results
            results[member] = y.item()
    assert results == {index: run_alone(plan, x).item() for index, plan in enumerate(plans)}


def test_equal_plans_run_once():
    chain = segments(3)
    ((members, _),) = run_plans(chain, [intact(3)] * 4, torch.ones(1))
    assert members == [0, 1, 2, 3]
    assert [unit.runs for unit in chain.units] == [1, 1, 1]


@pytest.mark.parametrize("deleted", [[], [1], [0, 2]])
def test_plans(deleted):
    assert [index for index, kept in deleting(3, deleted) if not kept] == deleted
    assert [index for index, _ in deleting(3, deleted)] == [0, 1, 2]
