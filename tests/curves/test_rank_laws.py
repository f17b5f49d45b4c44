"""The table of laws over the number of ranks: values that can be computed in the head."""

import numpy
import pytest

from torchcoll.parts.curves import rank_laws


def test_the_terms_at_eight_ranks():
    eight = numpy.array([8.0])
    assert {name: float(of(eight)[0]) for name, of in rank_laws.TERMS.items()} == {
        "log2 n": 3.0,
        "n": 8.0,
        "(n-1)/n": 0.875,
    }


def test_a_law_has_a_constant_and_its_terms():
    ring = rank_laws.RankLaw(("n", "(n-1)/n"))
    assert (ring.name, ring.parameters) == ("n + (n-1)/n", 3)
    assert [column.tolist() for column in ring.columns(numpy.array([2.0, 4.0]))] == [
        [1.0, 1.0],
        [2.0, 4.0],
        [0.5, 0.75],
    ]
    assert rank_laws.CONSTANT.parameters == 1
    assert ring in rank_laws.MIXTURES


@pytest.mark.parametrize(
    ("collective", "law", "steps", "share"),
    [
        # On 8 ranks. Reduce-scatter and all-gather: 2 x 7 messages, 2 x 7/8 of the data.
        ("all_reduce", "ring", 14.0, 1.75),
        ("all_reduce", "tree", 6.0, 2.0),
        ("all_reduce", "recursive doubling", 3.0, 3.0),
        ("all_reduce", "linear", 7.0, 7.0),
        # Blocks are sent once, however they go.
        ("all_gather", "ring", 7.0, 0.875),
        ("all_gather", "recursive doubling", 3.0, 0.875),
        ("all_gather", "linear", 7.0, 0.875),
        # 2 (n - 1) / n of hypercube's S: nccl-tests counts (n - 1) / n of it, and busbw is algbw.
        ("hypercube", "ring", 7.0, 0.875),
        ("broadcast", "ring", 7.0, 1.0),
        ("broadcast", "tree", 3.0, 1.0),
        ("broadcast", "recursive doubling", 3.0, 3.0),
        ("broadcast", "linear", 7.0, 7.0),
        ("sendrecv", "neighbours", 1.0, 1.0),
    ],
)
def test_steps_and_shares_of_eight_ranks(collective, law, steps, share):
    (step_law,) = [one for one in rank_laws.step_laws(collective) if one.name == law]
    assert (step_law.steps(8), step_law.share(8)) == (steps, share)


def test_neighbours_have_no_other_law():
    assert [law.name for law in rank_laws.step_laws("sendrecv")] == ["neighbours"]


def test_a_fit_gives_the_parameters_that_the_times_were_made_of():
    ranks = numpy.array([2.0, 4.0, 8.0])
    times = 3 + 2 * ranks
    rows = numpy.column_stack(rank_laws.RankLaw(("n",)).columns(ranks))
    parameters, fitted = rank_laws.fit_positive(rows / times[:, None], numpy.ones(3))
    assert parameters == pytest.approx([3.0, 2.0])
    assert fitted == pytest.approx([1.0, 1.0, 1.0])


def test_no_parameter_is_below_zero():
    # 4 at 1 and 2 at 2 fall: without a slope the mean is the best.
    parameters, fitted = rank_laws.fit_positive(
        numpy.array([[1.0, 1.0], [1.0, 2.0]]), numpy.array([4.0, 2.0])
    )
    assert parameters == pytest.approx([3.0, 0.0])
    assert fitted == pytest.approx([3.0, 3.0])
