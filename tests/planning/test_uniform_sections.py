"""Equal sections: their lengths, and the trip counts of nested loops over them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_recompute.errors import InvalidArgumentError
from keras_recompute.planning import section_lengths
from keras_recompute.planning.nested_sections import equal_groups

from .cases import repeatable


def test_sections_of_the_published_example_are_equal():
    assert section_lengths(2048, 8) == (256,) * 8


def test_sections_that_cannot_be_equal_begin_at_i_times_n_over_k():
    # 10 * i // 4 for i in 0..4: 0, 2, 5, 7, 10
    assert section_lengths(10, 4) == (2, 3, 2, 3)


@repeatable
@given(st.integers(1, 3000), st.data())
def test_section_lengths_cover_the_steps_and_differ_by_one_at_most(steps, data):
    sections = data.draw(st.integers(1, steps))
    lengths = section_lengths(steps, sections)
    assert len(lengths) == sections
    assert sum(lengths) == steps
    assert max(lengths) - min(lengths) == (steps % sections > 0)


@repeatable
@given(st.integers(1, 3000), st.integers(1, 4))
def test_equal_groups_multiply_to_the_count_largest_first(count, levels):
    groups = equal_groups(count, levels)
    assert math.prod(groups) == count
    assert len(groups) <= levels
    assert list(groups) == sorted(groups, reverse=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: section_lengths(3, 4),
            "4 sections do not fit in 3 steps, because each needs a step: give fewer",
        ),
        (lambda: section_lengths(0, 1), "steps is 0: .* at least 1"),
        (lambda: section_lengths(3, 0), "sections is 0: .* at least 1"),
        (lambda: equal_groups(0, 1), "count is 0: .* at least 1"),
        (lambda: equal_groups(3, 0), "levels is 0: .* at least 1"),
    ],
)
def test_what_cannot_be_cut_is_refused(make, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make()
