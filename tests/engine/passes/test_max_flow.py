"""The smallest cut, against all cuts of small graphs."""

from __future__ import annotations

from itertools import chain, combinations

from hypothesis import given
from hypothesis import strategies as st

from keras_recompute.engine.passes.max_flow import minimum_cut

NODES = range(7)
SIZES = st.fixed_dictionaries({node: st.integers(0, 5) for node in NODES})
SETS = st.sets(st.sampled_from(NODES))
EDGES = st.sets(
    st.tuples(st.sampled_from(NODES), st.sampled_from(NODES)).filter(lambda e: e[0] < e[1])
)


def separates(cut, edges, sources, sinks):
    reached = set(sources) - set(cut)
    for a, b in sorted(edges):  # edges lead to higher numbers, so one pass in order reaches all
        if a in reached and b not in cut:
            reached.add(b)
    return not reached & sinks


def smallest(sizes, edges, sources, sinks):
    every = chain.from_iterable(combinations(NODES, n) for n in range(len(NODES) + 1))
    return min(sum(sizes[n] for n in cut) for cut in every if separates(cut, edges, sources, sinks))


@given(sizes=SIZES, edges=EDGES, sources=SETS, sinks=SETS)
def test_a_cut_separates_and_none_is_smaller(sizes, edges, sources, sinks):
    cut = minimum_cut(sizes, edges, sources, sinks)
    assert separates(cut, edges, sources, sinks)
    assert sum(sizes[n] for n in cut) == smallest(sizes, edges, sources, sinks)


def test_the_neck_of_a_graph_is_cut():
    #   0 - 1 \     / 4
    #           3        sizes 2, and 3 of 3: less than the two before it or behind it
    #       2 /     \ 5
    sizes = {0: 2, 1: 2, 2: 2, 3: 3, 4: 2, 5: 2}
    edges = [(0, 1), (1, 3), (2, 3), (3, 4), (3, 5)]
    assert minimum_cut(sizes, edges, {0, 2}, {4, 5}) == {3}


def test_of_equal_cuts_it_is_the_one_nearest_to_the_sinks():
    assert minimum_cut(dict.fromkeys(range(4), 1), [(0, 1), (1, 2), (2, 3)], {0}, {3}) == {3}


def test_a_source_that_is_a_sink_is_cut():
    assert minimum_cut({"a": 4}, [], {"a"}, {"a"}) == {"a"}
