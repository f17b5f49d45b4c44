from hypothesis import given
from hypothesis import strategies as st

from torchcoll.parts.training.intervals import Union, exposed, merged

SPANS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 10)).map(lambda pair: (pair[0], sum(pair)))
)


def points(spans):
    """The same on whole numbers, one by one."""
    return {point for start, end in spans for point in range(start, end)}


def test_a_union():
    assert merged([(5, 9), (0, 3), (2, 4), (9, 9)]) == [(0, 4), (5, 9)]
    assert merged([(0, 2), (2, 4)]) == [(0, 4)]
    union = Union([(0, 3), (2, 4), (5, 9)])
    assert union.total == 8
    assert [union.within(*span) for span in ((-5, 0), (3, 6), (4, 5), (0, 99), (6, 6))] == [
        0,
        2,
        0,
        8,
        0,
    ]


@given(SPANS, SPANS)
def test_as_counted_point_by_point(spans, asked):
    union = Union(spans)
    assert union.total == len(points(spans))
    for start, end in asked:
        assert union.within(start, end) == len(points(spans) & set(range(start, end)))


def test_what_is_exposed_counts_once():
    # 0 to 10 and 5 to 15; 2 to 4 and 12 to 13 are hidden. The second has what is left after 10.
    assert exposed([(5, 15), (0, 10)], Union([(2, 4), (12, 13)])) == [4, 8]


@given(SPANS, SPANS)
def test_the_sum_is_what_is_open(spans, hiding):
    assert sum(exposed(spans, Union(hiding))) == len(points(spans) - points(hiding))
