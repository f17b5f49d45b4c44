"""Since when: planted changes are dated and named, and quiet series stay quiet."""

from __future__ import annotations

import math

import numpy as np
import pytest
from made_fleet import made_fleet, made_summaries

from torchcoll.parts.fleet.changes_over_time import history_of
from torchcoll.parts.fleet.incidents import change_night, estimate_noise, scores_of, window_values
from torchcoll.parts.fleet.panel import baseline_nights, panels_of
from torchcoll.parts.fleet.records import summarise_run
from torchcoll.parts.fleet.series import SummariesBuilder


def history(runs, threshold=0.03, accepted=0):
    builder = SummariesBuilder()
    for summary, cases in runs:
        builder.add(summary, cases)
    (panel,) = panels_of(builder.build())
    return history_of(panel, threshold, accepted)


def test_made_summaries_are_those_of_the_made_runs():
    plan = (3, 2, lambda node, night, case: 1 + node + night / 10 + case / 100)
    labels = lambda node, night: {"rack": f"r{node // 2}"}  # noqa: E731
    by_run = [summarise_run(run) for run in made_fleet(*plan, labels)]
    of_history = ("run_id", "node", "hosts", "start_us", "facts", "labels", "status", "ranks")
    for (run, cases), (summary, summaries) in zip(
        by_run, made_summaries(*plan, labels), strict=True
    ):
        assert [getattr(run, n) for n in of_history] == [getattr(summary, n) for n in of_history]
        assert [(c.key, c.status, c.time_ns) for c in cases] == [
            (c.key, c.status, c.time_ns) for c in summaries
        ]


def versions(changed_on, **facts):
    """environment of made_fleet: each fact is ``1`` before that night, then ``2``."""
    return lambda node, night: {n: "2" if night >= changed_on else "1" for n in facts}


def test_a_fleet_wide_step_is_dated_and_the_version_that_changed_is_named():
    runs = made_summaries(
        16,
        30,
        lambda node, night, case: 1.06 if night >= 21 else 1,
        environment=versions(21, nccl=1),
    )
    (incident,) = history(runs).incidents
    assert (incident.scope, incident.kind, incident.began) == ("fleet", "step", "2026-10-22")
    assert math.expm1(incident.effect) == pytest.approx(0.06, abs=0.002)
    assert incident.changed == ("nccl 1 -> 2",)
    assert incident.ended == ""
    assert len(incident.cases) == 10


def test_two_versions_that_changed_together_are_both_named():
    environment = versions(21, nccl=1, driver=1)
    runs = made_summaries(
        16, 30, lambda node, night, case: 1.06 if night >= 21 else 1, environment=environment
    )
    (incident,) = history(runs).incidents
    assert set(incident.changed) == {"driver 1 -> 2", "nccl 1 -> 2"}


def test_a_version_that_changed_another_night_is_not_named():
    runs = made_summaries(
        16,
        30,
        lambda node, night, case: 1.06 if night >= 21 else 1,
        environment=versions(15, nccl=1),
    )
    (incident,) = history(runs).incidents
    assert incident.changed == ()


def test_a_step_of_one_node_is_its_own():
    runs = made_summaries(
        16, 40, lambda node, night, case: 1.05 if node == 3 and night >= 25 else 1
    )
    (incident,) = history(runs).incidents
    assert (incident.scope, incident.nodes, incident.began) == ("node", ("node003",), "2026-10-26")
    assert math.expm1(incident.effect) == pytest.approx(0.05, abs=0.005)
    assert math.expm1(incident.low) < 0.05 < math.expm1(incident.high)


def test_nothing_happened():
    found = history(made_summaries(16, 40))
    assert found.incidents == ()
    assert found.detectable == pytest.approx(math.log(1.03), abs=0.01)


def test_one_bad_night_is_over():
    runs = made_summaries(16, 40, lambda node, night, case: 1.3 if node == 3 and night == 25 else 1)
    (incident,) = history(runs).incidents
    assert (incident.kind, incident.began, incident.ended) == (
        "one night",
        "2026-10-26",
        "2026-10-27",
    )


def test_a_node_that_is_slow_again_and_again_is_flapping():
    times = lambda node, night, case: 1.1 if node == 3 and night >= 20 and night // 7 % 2 else 1  # noqa: E731
    (incident,) = history(made_summaries(16, 70, times)).incidents
    assert (incident.kind, incident.nodes) == ("flapping", ("node003",))
    assert incident.openings == 4  # nights 21-27, 35-41, 49-55, 63-69


def test_a_slow_drift_is_called_so():
    times = lambda node, night, case: 1 + 0.002 * max(0, night - 25) if node == 3 else 1  # noqa: E731
    (incident,) = history(made_summaries(16, 80, times)).incidents
    assert (incident.kind, incident.nodes) == ("drift", ("node003",))


def test_a_staged_rollout_is_compared_with_the_nodes_that_had_not_changed():
    changed_on = lambda node: 25 + node % 7  # noqa: E731
    runs = made_summaries(
        32,
        45,
        lambda node, night, case: 1.05 if night >= changed_on(node) else 1,
        environment=lambda node, night: {"nccl": "2" if night >= changed_on(node) else "1"},
    )
    (incident,) = history(runs).incidents
    assert (incident.scope, incident.changed) == ("staged", ("nccl 1 -> 2",))
    assert len(incident.nodes) == 32
    assert math.expm1(incident.effect) == pytest.approx(0.05, abs=0.003)


def test_a_rack_is_one_incident_and_its_nodes_are_none():
    runs = made_summaries(
        32,
        45,
        lambda node, night, case: 1.05 if night >= 25 and node // 8 == 1 else 1,
        labels=lambda node, night: {"rack": f"r{node // 8}"},
    )
    (incident,) = history(runs).incidents
    assert (incident.scope, incident.group, incident.began) == ("group", "rack=r1", "2026-10-26")


def test_after_accept_the_new_level_is_the_baseline():
    runs = made_summaries(16, 60, lambda node, night, case: 1.06 if night >= 21 else 1)
    assert history(runs, accepted=22).incidents == ()


def test_missing_nights_and_nodes_that_went_are_told():
    runs = [
        (run, cases)
        for run, cases in made_summaries(12, 30)
        if not run.run_id.startswith("0010")  # no night of the 11th of October
        and not (run.run_id.endswith("0004") and run.run_id > "0020")
    ]
    found = history(runs)
    assert found.missing_nights == ("2026-10-11",)
    assert found.gone == (("node004", "2026-10-20"),)
    assert found.incidents == ()


def test_four_nights_are_too_few():
    found = history(made_summaries(12, 4, lambda node, night, case: 2 if night == 3 else 1))
    assert found.incidents == ()
    assert found.judged == 0


def test_a_single_node_has_its_own_history():
    (incident,) = history(
        made_summaries(1, 60, lambda n, night, c: 1.3 if night >= 40 else 1)
    ).incidents
    assert (incident.nodes, incident.began) == (("node000",), "2026-11-10")


def test_means_and_medians_of_windows_by_hand():
    series = np.array([[1.0], [2.0], [6.0], [math.nan], [4.0]])
    means, counts = window_values(series, 3, median=False)
    assert means[:, 0] == pytest.approx([1, 1.5, 3, 4, 5])
    assert counts[:, 0].tolist() == [1, 2, 3, 2, 2]
    medians, _ = window_values(series, 3, median=True)
    assert medians[2:, 0] == pytest.approx([2, 4, 5])
    assert np.isnan(medians[:2, 0]).all()


def test_the_night_of_a_change_by_hand():
    assert change_night(np.array([0, 0.1, -0.1, 0, 1, 1.2, 0.9]), 6) == 4


def test_the_noise_of_independent_nights():
    generator = np.random.default_rng(3)
    series = 0.01 * generator.standard_normal((60, 400))
    baseline = np.zeros((60, 400), dtype=bool)
    baseline[:30] = True
    noise = estimate_noise(series, baseline)
    assert np.median(noise.scale) == pytest.approx(0.01, rel=0.05)
    # The mean of 7 has 1/sqrt(7) = 0.378; the baseline's mean of 30 nights adds 1/30 in variance.
    assert noise.ratio[4] == pytest.approx(math.sqrt(1 / 7 + 1 / 30), rel=0.1)
    assert abs(scores_of(series, noise, 1e-9).value).max() < 1.2


def test_a_baseline_is_a_third_of_the_nights_between_5_and_30():
    present = np.ones((12, 1), dtype=bool)
    assert baseline_nights(present).sum() == 5
    assert baseline_nights(np.ones((60, 1), dtype=bool)).sum() == 20
    assert baseline_nights(np.ones((365, 1), dtype=bool)).sum() == 30
    assert baseline_nights(np.ones((60, 1), dtype=bool), 10)[:10].sum() == 0


def scattering(factor, since):
    """Slowdowns of 16 nodes over 120 nights: node 3 scatters ``factor`` times as much."""
    random = np.random.default_rng(7)
    noise = random.normal(0, 0.004, (16, 120))
    noise[3, since:] *= factor
    return lambda node, night, case: math.exp(noise[node, night])


def test_a_node_that_scatters_more_is_found_and_the_others_are_not():
    incidents = history(made_summaries(16, 120, scattering(6, 60))).incidents
    spreads = [incident for incident in incidents if incident.kind == "spread"]
    assert [incident.nodes for incident in spreads] == [("node003",)]
    assert spreads[0].detected > "2026-11-30"


def test_a_large_step_or_flapping_is_not_a_change_of_spread():
    def slowdown(node, night, case):
        return {3: 1.3 if night >= 60 else 1, 5: 1.3 if night % 14 < 7 <= 60 <= night else 1}.get(
            node, 1
        )

    incidents = history(made_summaries(16, 120, slowdown)).incidents
    assert {(incident.nodes, incident.kind) for incident in incidents} == {
        (("node003",), "step"),
        (("node005",), "flapping"),
    }


def noise_of_baseline(lengths, nights=400):
    """Noise of independent normal series, each with a baseline of its first nights."""
    series = np.random.default_rng(3).standard_normal((nights, len(lengths)))
    baseline = np.arange(nights)[:, None] < np.array(lengths)
    return series, estimate_noise(series, baseline)


@pytest.mark.parametrize(("length", "longest"), [(12, 7), (8, 3), (5, 3)])
def test_the_noise_of_a_window_counts_that_of_a_short_baseline(length, longest):
    _, noise = noise_of_baseline([length] * 500)
    for index, window in enumerate((1, 2, 3, 5, 7)):
        nights = min(window, longest)  # a longer window is taken to be no better
        assert noise.ratio[index] == pytest.approx(math.sqrt(1 / nights + 1 / length), rel=0.12)


def test_a_series_with_a_shorter_baseline_than_the_others_needs_a_larger_deviation():
    series, noise = noise_of_baseline([30] * 99 + [5])
    assert noise.extra[:99] == pytest.approx(np.zeros(99))
    assert noise.extra[99] == pytest.approx(1 / 5 - 1 / 30, rel=0.3)
    series[399] = noise.centre + 4
    value = scores_of(series, noise, 3e-6).value[399]
    assert value[99] < 0.97 * np.median(value[:99])


def test_a_median_with_missing_nights_counts_less():
    series, noise = noise_of_baseline([30] * 100)
    series[393:] = noise.centre + 2.5
    whole = scores_of(series, noise, 3e-6).value[399, 0]
    series[393:396, 0] = np.nan  # 4 of 7 nights are left
    assert scores_of(series, noise, 3e-6).value[399, 0] < 0.9 * whole
