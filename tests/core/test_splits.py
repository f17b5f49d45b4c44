from fractions import Fraction

import pytest
from error_form import error_text
from hypothesis import given
from hypothesis import strategies as st

from torchcoll.core.errors import UsageError
from torchcoll.core.splits import Division, Weights, split_rules, split_weights

EXPECTED = (
    "balanced, zipf:A, hot:K, seed:N, one weight per rank such as 1,2,4,1, or the path "
    "of a matrix file; combine: or pair: may stand before it"
)


def rows(weights):
    return [list(row) for row in weights.rows]


def refusal(splits, ranks):
    with pytest.raises(UsageError) as caught:
        split_weights(splits, ranks)
    return str(caught.value)


def test_every_rank_sends_in_the_proportions_of_a_list():
    assert rows(split_weights("1,2,4", 3)) == [[1, 2, 4]] * 3
    assert rows(split_weights("0.5,0.25,1", 3)) == [[2, 1, 4]] * 3


def test_seed_is_the_same_everywhere_and_for_ever():
    # random.Random(0).randbytes(9), the low four bits of each.
    assert rows(split_weights("seed:0", 3)) == [[13, 7, 12], [8, 14, 15], [15, 2, 2]]
    assert rows(split_weights("seed:7", 2)) != rows(split_weights("seed:0", 2))


def test_seed_draws_every_weight():
    flat = [weight for row in rows(split_weights("seed:1", 64)) for weight in row]
    assert set(flat) == set(range(16))
    # 4096 draws of 0 to 15: mean 7.5, standard error 4.61 / 64 = 0.072.
    assert abs(sum(flat) / len(flat) - 7.5) < 4 * 0.072


def test_seed_never_gives_nothing_at_all():
    for seed in range(100):  # one rank draws a single weight, every 16th a 0
        assert any(map(any, rows(split_weights(f"seed:{seed}", 1))))


def test_patterns_of_mixture_of_experts():
    assert rows(split_weights("balanced", 3)) == [[1, 1, 1]] * 3
    assert rows(split_weights("hot:1", 4)) == [[8, 1, 1, 1]] * 4
    assert rows(split_weights("hot:2", 4)) == [[8, 8, 1, 1]] * 4
    # 1, 1/2 and 1/4 of 2**40, and 1/9 of it rounded.
    assert rows(split_weights("zipf:1", 2)) == [[1 << 40, 1 << 39]] * 2
    assert rows(split_weights("zipf:2", 3)) == [[1 << 40, 1 << 38, 122167958642]] * 3
    assert rows(split_weights("hot:1", 1)) == [[8]]


def test_combine_returns_what_dispatch_sent():
    assert rows(split_weights("combine:hot:1", 3)) == [[8, 8, 8], [1, 1, 1], [1, 1, 1]]
    assert rows(split_weights("combine:1,2,4", 3)) == [[1, 1, 1], [2, 2, 2], [4, 4, 4]]
    assert split_rules("pair:hot:1") == ("hot:1", "combine:hot:1")
    assert split_rules("hot:1") == ("hot:1",)


@pytest.mark.parametrize("text", ["0 1\n2 3\n", "0,1\n2,3", "0, 1\n\n2, 3\n"])
def test_matrix_file(tmp_path, text):
    path = tmp_path / "matrix.txt"
    path.write_text(text)
    assert rows(split_weights(str(path), 2)) == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("splits", "line"),
    [
        ("seed:", error_text("splits", "seed:", EXPECTED)),
        ("seed:x", error_text("splits", "seed:x", EXPECTED)),
        ("seed:-1", error_text("splits", "seed:-1", EXPECTED)),
        ("seed:\u00b2", error_text("splits", "seed:²", EXPECTED)),  # a digit, no number
        ("seed:" + "9" * 5000, error_text("splits", f"seed:{'9' * 112}...", EXPECTED)),
        ("", error_text("splits", "an empty text", EXPECTED)),
        ("zipf:", error_text("splits", "zipf:", EXPECTED)),
        ("hot:x", error_text("splits", "hot:x", EXPECTED)),
        (
            "zipf:1.2.3",
            error_text("splits", "zipf:1.2.3", "zipf:A with a number, such as zipf:1.2"),
        ),
        ("zipf:0", error_text("splits", "zipf:0", "zipf:A with A above 0 and at most 4")),
        ("zipf:4.1", error_text("splits", "zipf:4.1", "zipf:A with A above 0 and at most 4")),
        ("hot:0", error_text("splits", "hot:0", "at least 1 and at most 2 hot ranks of 3")),
        ("hot:3", error_text("splits", "hot:3", "at least 1 and at most 2 hot ranks of 3")),
        ("combine:hot:3", error_text("splits", "hot:3", "at least 1 and at most 2 hot ranks of 3")),
        ("no-such-file", error_text("splits", "no-such-file", EXPECTED)),
        ("1,2", error_text("splits", "1,2", "3 weights, one a rank")),
        ("1,2,3,4", error_text("splits", "1,2,3,4", "3 weights, one a rank")),
        ("1,,3", error_text("splits", "1,,3", EXPECTED)),
        ("0,0,0", error_text("splits", "0,0,0", "weights from 0 on, at least one above 0")),
        ("1,-1,1", error_text("splits", "1,-1,1", "weights from 0 on, at least one above 0")),
        ("1,nan,1", error_text("splits", "1,nan,1", "weights from 0 on, at least one above 0")),
        ("1,inf,1", error_text("splits", "1,inf,1", "weights from 0 on, at least one above 0")),
    ],
)
def test_refused(splits, line, in_tmp_path):
    assert refusal(splits, 3) == line


def test_a_long_list_is_no_file_name():
    # 600 weights are more characters than a file name may have.
    assert rows(split_weights(",".join(["1"] * 600), 600))[0] == [1] * 600


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("1 2\n3 x\n", error_text("splits file", "{}", "a matrix of numbers (could not convert")),
        ("1 2\n", error_text("splits file {}", "1 row of [2] numbers", "2 rows of 2 numbers, one")),
        (
            "1 2\n3\n",
            error_text("splits file {}", "2 rows of [1, 2] numbers", "2 rows of 2 numbers"),
        ),
        (
            "",
            error_text("splits file {}", "0 rows of [] numbers", "2 rows of 2 numbers, one a rank"),
        ),
        ("0 0\n0 0\n", error_text("splits", "{}", "weights from 0 on, at least one above 0")),
        ("1 -2\n3 4\n", error_text("splits", "{}", "weights from 0 on, at least one above 0")),
    ],
)
def test_refused_file(in_tmp_path, text, line):
    (in_tmp_path / "m").write_text(text)
    assert refusal("m", 2).startswith(line.format("m"))


def test_refused_binary_file(in_tmp_path):
    (in_tmp_path / "m").write_bytes(b"\xff\xfe\x00")
    assert refusal("m", 2).startswith(
        error_text("splits file", "m", "a matrix of numbers ('utf-8'")
    )


def by_hand(weights, elements):
    """Every pair by itself, in exact fractions."""
    largest = max(max(map(sum, weights)), max(map(sum, zip(*weights, strict=True))))
    matrix = [[int(Fraction(w * elements, largest)) for w in row] for row in weights]
    if not any(map(any, matrix)):
        heaviest = max(map(max, weights))
        source = max(s for s, row in enumerate(weights) if heaviest in row)
        destination = max(d for d, w in enumerate(weights[source]) if w == heaviest)
        matrix[source][destination] = 1
    return matrix


def of_pairs(division):
    ranks = range(len(division.weights.rows))
    return [[division.pair(source, peer) for peer in ranks] for source in ranks]


SQUARES = st.integers(1, 6).flatmap(
    lambda n: st.lists(
        st.lists(st.integers(0, 60), min_size=n, max_size=n), min_size=n, max_size=n
    ).filter(lambda rows: any(map(any, rows)))
)


@given(SQUARES, st.integers(1, 1 << 40))
def test_division_is_the_division_of_every_pair(weights, elements):
    expected = by_hand(weights, elements)
    division = Division(Weights([tuple(row) for row in weights]), elements)
    # The sums first: they must not come from the matrix.
    assert division.sent == [sum(row) for row in expected]
    assert division.received == [sum(column) for column in zip(*expected, strict=True)]
    assert division.largest_pair == max(map(max, expected))
    assert of_pairs(division) == expected
    assert 1 <= max(*division.sent, *division.received) <= elements


@pytest.mark.parametrize("weight", [1, 3, 49, 103])
@pytest.mark.parametrize("elements", [2, 4, 98, 1000])
def test_equal_weights_divide_evenly(weight, elements):
    # In floating point 49 * (2 / 98) is below 1, and nothing would be sent.
    division = Division(Weights([(weight, weight)] * 2), elements)
    assert of_pairs(division) == [[elements // 2] * 2] * 2


def test_too_few_elements_still_send_one():
    division = Division(Weights([(1, 5), (5, 1)]), 1)
    assert of_pairs(division) == [[0, 0], [1, 0]]  # the last of the heaviest
    assert (division.sent, division.received, division.largest_pair) == ([0, 1], [1, 0], 1)
