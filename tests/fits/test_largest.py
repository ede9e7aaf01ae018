"""The search for the largest size that fits, on needs that grow with the size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_recompute.fits.largest import largest_that_fits


def searched(needed, *, start, budget, step=1, tries=50, known=()):
    asked = []

    def of(size):
        asked.append(size)
        return needed(size)

    sizes = {size: needed(size) for size in (start, *known)}
    found = largest_that_fits(of, known=sizes, budget_bytes=budget, step=step, tries=tries)
    return found, asked


def test_a_line_takes_three_sizes():
    # 100 + 10 * 90 = 1000 fits, and 91 does not. The second size gives the slope.
    found, asked = searched(lambda size: 100 + 10 * size, start=8, budget=1000)
    assert (found.fits, found.fits_bytes) == (90, 1000)
    assert (found.exceeds, found.exceeds_bytes) == (91, 1010)
    assert asked == [16, 90, 91]


def test_what_is_always_needed_saves_a_size():
    found, asked = searched(lambda size: 100 + 10 * size, start=8, budget=1000, known=[0])
    assert (found.fits, found.exceeds) == (90, 91)
    assert asked == [90, 91]


@pytest.mark.parametrize("known", [(), (0,)])
@pytest.mark.parametrize("budget", [105, 95])  # 95: not even weights and optimizer
def test_not_even_one_fits(budget, known):
    found, _ = searched(lambda size: 100 + 10 * size, start=4, budget=budget, known=known)
    assert (found.fits, found.exceeds, found.exceeds_bytes) == (None, 1, 110)


def test_after_so_many_tries_the_best_so_far_is_returned():
    found, asked = searched(lambda size: size**3, start=1, budget=10**9, tries=3)
    assert len(asked) == 3
    assert found.fits in (1, *asked)


@given(
    start=st.integers(1, 40),
    fixed=st.integers(0, 10**4),
    slope=st.integers(1, 100),
    bend=st.integers(0, 3),
    budget=st.integers(1, 10**6),
    step=st.sampled_from([1, 8]),
    known=st.sampled_from([(), (0,)]),
)
def test_the_largest_multiple_is_found(start, fixed, slope, bend, budget, step, known):
    def needed(size):
        return fixed + slope * size + bend * size**2

    found, _ = searched(
        needed, start=start * step, budget=budget, step=step, tries=200, known=known
    )
    sizes = range(step, 10**6 + 2 * step, step)  # to the first that exceeds any budget
    fitting = next((size for size in sizes if needed(size) > budget), sizes[-1]) - step
    assert (found.fits or 0) == fitting
    assert found.exceeds == fitting + step
