"""What several test files draw from: settings that make Hypothesis repeatable, and chains."""

from hypothesis import settings
from hypothesis import strategies as st

from keras_recompute.planning import Chain

# Repeatable, and no deadline: the machines that run this are shared.
repeatable = settings(derandomize=True, deadline=None, max_examples=60)


@st.composite
def uneven_chains(draw, least=1, most=5):
    """Small numbers, zero among them, so that sums tie often; working and fixed bytes in half of
    the chains.
    """
    steps = draw(st.integers(least, most))

    def row(low, high):
        return draw(st.lists(st.integers(low, high), min_size=steps, max_size=steps))

    extra = draw(st.booleans())
    return Chain(
        state_bytes=row(0, 6),
        activation_bytes=row(0, 9),
        forward_seconds=row(0, 5),
        backward_seconds=row(0, 5),
        working_bytes=row(0, 4) if extra else (),
        fixed_bytes=3 if extra else 0,
    )
