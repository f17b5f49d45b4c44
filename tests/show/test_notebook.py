"""What a notebook shows of what torchcoll gives back."""

import base64

import pytest
from handmade import case, result, run
from made_pairs import pairs_run

import torchcoll
from torchcoll.questions.page.notebook import _outputs, charts_of


def test_a_run_shows_its_verdict_and_its_table():
    html = run(result())._repr_html_()
    assert html.startswith("<p><b>all_reduce on 8 gloo ranks takes 1.00 ms and reaches 117 GB/s ")
    assert html.count("NO REFERENCE") == 1
    assert html.count("<table>") == 1
    assert 'right">117.441</td><td style="text-align: left">correct</td></tr>' in html


def test_a_run_and_a_finding_have_their_answer():
    """As ``show`` and the commands begin."""
    start = "all_reduce on 8 gloo ranks takes 1.00 ms and reaches 117 GB/s "
    assert run(result()).answer.headline.startswith(start)
    assert pairs_run(5, slow=3).answer.headline.startswith("rank 3 (n3) is slow: it has 50 % of ")
    started = torchcoll.cold([run(result(), header={"start_utc": "2026-01-01T00:00:00Z"})])
    for finding in (started, torchcoll.compare(run(result()), run(result()))):
        assert finding.answer.headline in finding._repr_html_()


def test_what_a_file_holds_is_no_markup():
    bad = run(result(), header={"spec": {"labels": {"site": "<script>x</script>"}}})
    assert "<script>" not in bad._repr_html_()
    assert "site=&lt;script&gt;" in bad._repr_html_()


def test_comparisons_and_cold_starts_show_their_answer():
    compared = torchcoll.compare(run(result()), run(result()))
    start = "<p><b>new is within 2 % of base at 64M</b>; not proven: only 1 run of each side; "
    assert compared._repr_html_().startswith(start)
    cold = torchcoll.cold([run(result(), header={"start_utc": "2026-01-01T00:00:00Z"})])
    assert compared._repr_html_().count("not proven: only 1 run of each side; ") == 1
    # 5 ms against a median of 1 ms.
    assert cold._repr_html_().startswith(
        "<p><b>on 8 ranks the first call takes 5.00 ms, 5 times a steady call (1.00 ms)"
    )


def test_a_plan_shows_its_step_and_its_memory():
    options = {"machine": "8xH100", "batch": "1x8192", "step_ms": 600}
    plan = torchcoll.plan("llama-3-8b", "fsdp=64", **options)
    step, memory = charts_of(plan)
    seconds = sum(trace["x"][0] for trace in step.traces)
    assert seconds == pytest.approx(plan.step.step_ns[0] * 1e-9, rel=0.01)
    gigabytes = sum(trace["x"][0] for trace in memory.traces)
    assert gigabytes == pytest.approx(plan.step.memory.most / 1e9, rel=0.001)


def test_pictures_show_themselves(tmp_path):
    pytest.importorskip("matplotlib")
    sizes = [result(case=case(size_bytes=n), size_bytes=n) for n in (1024, 4096)]
    for suffix, kind in (("png", "image/png"), ("svg", "image/svg+xml")):
        drawn = torchcoll.plot(run(*sizes), tmp_path / f"a.{suffix}")
        bundle = drawn._repr_mimebundle_()
        content = (tmp_path / f"a.{suffix}").read_bytes()
        held = bundle[kind].encode() if suffix == "svg" else base64.b64decode(bundle[kind])
        assert held == content


def test_a_chart_has_a_picture_beside_the_interactive_figure():
    pytest.importorskip("plotly")
    pytest.importorskip("matplotlib")
    sizes = [result(case=case(size_bytes=size)) for size in (1024, 2048, 4096)]
    chart = charts_of(run(*sizes))[0]
    outputs = _outputs(chart, chart.figure())
    assert "application/vnd.plotly.v1+json" in outputs
    assert "<svg" in outputs["image/svg+xml"]
