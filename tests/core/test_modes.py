"""Two modes among the calls of a case, on samples made by hand."""

import pytest

from torchcoll.core.two_modes import Modes, two_modes

FAST = [400, 410, 420, 430, 440, 450, 460, 470, 480, 490, 500, 510, 520]
SLOW = [2000, 2500, 3000, 3500, 3600, 3800, 4000]


def test_two_modes_by_hand():
    """7 of 20 calls are slow. p5 of them at place 0.3, p95 at 5.7; of the fast at 0.6 and 11.4."""
    found = two_modes([*SLOW, *FAST])
    assert found is not None
    assert found == Modes(
        0.35,
        (pytest.approx(2000 + 0.3 * 500), pytest.approx(3800 + 0.7 * 200)),
        (pytest.approx(406), pytest.approx(514)),
    )


def test_a_few_calls_between_or_far_away_hide_no_modes():
    assert two_modes([*FAST * 4, *SLOW * 4, 900, 1200, 100_000, 500_000])


@pytest.mark.parametrize(
    "times",
    [
        [],
        [400] * 13 + [3000] * 6,  # 19 calls are too few
        [400] * 30,
        [400] * 38 + [3000] * 2,  # 5 % are stragglers, not a mode
        [400] * 20 + [560] * 20,  # 1.4 times as long changes nothing
        [0] * 20 + [3000] * 20,  # a broken clock
        list(range(400, 4000, 36)),  # evenly spread: no two groups
        [*range(400, 500, 10), *range(500, 1500, 50), *range(1500, 4000, 250)],
    ],
)
def test_one_mode(times):
    assert two_modes(times) is None


def test_the_slow_mode_may_be_the_larger():
    found = two_modes([400] * 8 + [3000] * 32)
    assert found == Modes(0.8, (3000, 3000), (400, 400))
