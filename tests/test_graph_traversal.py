"""The two walks, on random graphs, against closures that are computed in the slowest way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keras_recompute.graph_traversal import reachable, topological_order

NODES = 8
GRAPHS = st.fixed_dictionaries(
    {n: st.lists(st.integers(0, NODES - 1), max_size=3) for n in range(NODES)}
)
WITHOUT_CIRCLES = GRAPHS.map(lambda graph: {n: [m for m in to if m < n] for n, to in graph.items()})
STARTS = st.lists(st.integers(0, NODES - 1), max_size=3)


def closure(starts: list[int], graph: dict[int, list[int]]) -> set[int]:
    found = set(starts)
    for _ in range(NODES):
        found |= {m for n in found for m in graph[n]}
    return found


@given(STARTS, GRAPHS)
def test_what_is_reached_is_the_closure_of_the_starts(starts, graph):
    found = list(reachable(starts, graph.__getitem__))
    assert set(found) == closure(starts, graph)
    assert len(found) == len(set(found))
    assert found[: len(set(starts))] == list(dict.fromkeys(starts))


@given(STARTS, WITHOUT_CIRCLES)
def test_in_order_everything_comes_once_and_after_what_it_needs(ends, graph):
    order = topological_order(ends, graph.__getitem__)
    assert set(order) == closure(ends, graph)
    assert len(order) == len(set(order))
    assert all(order.index(m) < order.index(n) for n in order for m in graph[n])


def test_in_order_goes_down_the_first_way_first():
    graph = {"end": ["left", "right"], "left": ["both"], "right": ["both"], "both": []}
    assert topological_order(["end"], graph.__getitem__) == ["both", "left", "right", "end"]


def test_a_chain_of_any_length_is_walked():
    before = lambda n: [n - 1] if n else []  # noqa: E731
    assert topological_order([5000], before) == list(range(5001))
    assert list(reachable([5000], before)) == list(range(5000, -1, -1))
