"""The first sentence of ``compare``: which cases, how much, how close the rest is; what to do."""

import pytest
from made_runs import given, in_turn, make_runs, measured, run

from torchcoll.questions.comparison.compare import compare
from torchcoll.questions.comparison.conclusion_show import step_in_turn

SIZES = [64 << (2 * n) for n in range(10)]  # 64 256 1K 4K 16K 64K 256K 1M 4M 16M


def of_factors(factors, collectives=("all_reduce",), placements=(True,)):
    """The headline and details of one run on each side. factors: by (collective, size, in place),
    with None for any value.
    """

    def factor(*case):
        for asked, value in factors.items():
            if all(wanted in (None, own) for wanted, own in zip(asked, case, strict=True)):
                return value
        return 1.0

    sides = []
    for changed in (False, True):
        cases = [
            measured(
                round(100_000 * (factor(collective, size, placement) if changed else 1)),
                size_bytes=size,
                collective=collective,
                in_place=placement,
            )
            for collective in collectives
            for placement in placements
            for size in SIZES
        ]
        sides.append([run(*cases)])
    answer = compare(*sides).answer
    return answer.headline, answer.details


BOTH = (True, False)


@pytest.mark.parametrize(
    ("factors", "choices", "text"),
    [
        ({(None, None, None): 1.3}, {}, "1.30x slower than base at all sizes"),
        ({(None, None, None): 1.3}, {"placements": BOTH}, "1.30x slower than base at all sizes"),
        (
            {(None, None, None): 1.3},
            {"collectives": ("all_gather", "broadcast")},
            "1.30x slower than base in all 20 cases",
        ),
        (
            {(None, 4096, None): 1.5, (None, 16384, None): 1.5},
            {"placements": BOTH},
            "1.50x slower than base at 4K and 16K in and out of place",
        ),
        (
            {(None, 4096, False): 2.5},
            {"placements": BOTH},
            "2.5x slower than base at 4K out of place",
        ),
        (
            {("broadcast", None, None): 0.5},
            {"collectives": ("all_gather", "broadcast", "reduce")},
            "2.0x faster than base in broadcast",
        ),
        (
            {("broadcast", size, None): 3.1 for size in SIZES[6:]},
            {"collectives": ("all_gather", "broadcast", "reduce")},
            "3.1x slower than base from 256K on in broadcast",
        ),
        ({(None, size, None): 1.2 for size in SIZES[:4]}, {}, "1.20x slower than base up to 4K"),
        (
            {(None, size, None): 1.2 for size in SIZES[2:7]},
            {},
            "1.20x slower than base from 1K to 256K",
        ),
    ],
)
def test_the_cases_are_named_by_what_they_share(factors, choices, text):
    assert of_factors(factors, **choices)[0] == f"new looks {text}"


def test_cases_without_a_short_name_are_listed_and_their_sizes_named():
    """80 cases as in results/h200-8gpu-kernels: five of them far off, at two sizes."""
    factors = {
        ("broadcast", 1024, None): 3.2,
        ("sendrecv", 256, None): 2.5,
        ("gather", 1024, None): 2.2,
        ("gather", 256, None): 1.8,
        ("reduce", 256, None): 1.06,  # noise: 6 % next to 3.2x
        ("reduce", 65536, None): 1.035,
        ("gather", 65536, None): 0.98,
    }
    headline, details = of_factors(factors, ("broadcast", "sendrecv", "gather", "reduce"))
    assert headline == (
        "new looks slower than base in 4 of 40 cases, all at 256 B and 1K: broadcast 1K 3.2x, "
        "sendrecv 256 2.5x, gather 1K 2.2x, ..."
    )
    assert details[1] == "the other 36 cases are within 6 %"


def test_noise_is_not_named_beside_a_large_change():
    """Two cases of 3x; others scatter by up to 5 %."""
    factors = {(None, 4096, None): 3.05}
    factors |= {(None, size, True): 1.05 - n / 100 for n, size in enumerate(SIZES)}
    headline, details = of_factors(factors, placements=BOTH)
    assert headline == "new looks 3.0x slower than base at 4K in and out of place"
    assert details[1] == "the other 18 cases are within 5 %"


def test_noise_alone_is_a_bound():
    factors = {(None, size, True): 1.05 - n / 100 for n, size in enumerate(SIZES)}
    headline, details = of_factors(factors)
    assert headline == "new is within 5 % of base at all sizes"
    assert details[0] == "furthest: 64 1.05x slower"


def test_many_cases_have_a_mean_and_a_range():
    """Factors of 1.20, 1.22, ..., 1.38: the geometric mean is 1.29."""
    factors = {(None, size, None): 1.2 + n / 50 for n, size in enumerate(SIZES)}
    assert of_factors(factors)[0] == (
        "new looks 1.29x slower than base at all sizes (1.20x to 1.38x)"
    )


def test_what_the_runs_leave_open_is_not_said_to_be_close():
    """1K is slower for certain; the runs of 4K are 20 % apart around the same time."""
    noise = (1.0, 1.003, 0.997, 1.001, 0.999, 1.002)
    wide = (0.8, 1.2, 0.9, 1.15, 0.85, 1.1)
    base = [{1024: 1e5 * n, 4096: 1e5 * w, 64: 1e5 * n} for n, w in zip(noise, wide, strict=True)]
    new = [
        {1024: 1.4e5 * n, 4096: 1.02e5 * w, 64: 1e5 * n}
        for n, w in zip(noise[::-1], wide[::-1], strict=True)
    ]
    sides = [
        make_runs([{s: round(ns) for s, ns in each.items()} for each in a]) for a in (base, new)
    ]
    text = compare(*in_turn(*sides)).answer.headline
    assert text.startswith(
        "new is 1.40x slower than base at 1K (at least 1.39x, 6 runs each); not "
    )
    assert "not decided: 4K 1.02x slower; 64 is the same within 2 %" in text


@pytest.mark.parametrize(
    ("base", "new", "step"),
    [
        (
            {"variables": {"NCCL_ALGO": "Ring"}},
            {"variables": {"NCCL_ALGO": "Tree"}},
            "3 runs of each side in turn: torchcoll versus --env NCCL_ALGO=Ring,Tree -o DIR -- ",
        ),
        (
            {"variables": {"NCCL_NVLS_ENABLE": "0"}},
            {"variables": {}},
            "3 runs of each side in turn: torchcoll versus --env NCCL_NVLS_ENABLE=0, -o DIR -- ",
        ),
        (
            {"labels": {"table": "PyTorch 2.7.1"}},
            {"labels": {"table": "PyTorch 2.9.0"}},
            "3 runs of each side in turn: torchcoll versus --axis venv=OLD,NEW -o DIR -- COMMAND",
        ),
        ({"labels": {"kernel": "6.8.0"}}, {"labels": {"kernel": "6.14.2"}}, "make 3 runs of each "),
        (
            {"labels": {"node": "gpu-03"}},
            {"labels": {"node": "gpu-04"}},
            "make 3 runs of each side",
        ),
        ({}, {}, "make 3 runs of each side in turn"),
    ],
)
def test_the_next_step_can_vary_what_differs(base, new, step):
    found = compare(make_runs([100_000], **base), make_runs([140_000], **new))
    assert step_in_turn(found).startswith(step)
    assert found.answer.next_step == step_in_turn(found)


def test_two_versions_of_nccl_need_two_environments():
    sides = [
        run(
            *(given(ns * n, size_bytes=8 << n) for n in (1, 2, 3)),
            source={"tool": "nccl-tests"},
            header={"environment": {"libraries": {"nccl": f"NCCL {version}"}}},
        )
        for ns, version in ((100, "2.26.2"), (120, "2.28.3"))
    ]
    assert "--axis venv=OLD,NEW" in compare(*sides).answer.next_step
