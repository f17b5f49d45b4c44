"""What a notebook shows of what torchcoll gives back."""

from __future__ import annotations

import base64

import pytest
from handmade import case, result, run

import torchcoll


def test_a_run_shows_its_verdict_and_its_table():
    html = run(result())._repr_html_()
    assert html.startswith("<p><b>NO REFERENCE for gloo on cpu within one host: ")
    assert "117.441  correct\n" in html


def test_what_a_file_holds_is_no_markup():
    bad = run(result(), header={"spec": {"labels": {"site": "<script>x</script>"}}})
    assert "<script>" not in bad._repr_html_()
    assert "site=&lt;script&gt;" in bad._repr_html_()


def test_comparisons_and_cold_starts_show_their_answer():
    compared = torchcoll.compare(run(result()), run(result()))
    assert compared._repr_html_().startswith("<p><b>not judged (only 1 run of each side; ")
    cold = torchcoll.cold([run(result(), header={"start_utc": "2026-01-01T00:00:00Z"})])
    # 5 ms against a median of 1 ms.
    assert cold._repr_html_().startswith(
        "<p><b>on 8 ranks the first call takes 5.00 ms, 5 times a steady call (1.00 ms)"
    )


def test_pictures_show_themselves(tmp_path):
    pytest.importorskip("matplotlib")
    sizes = [result(case=case(size_bytes=n), size_bytes=n) for n in (1024, 4096)]
    for suffix, kind in (("png", "image/png"), ("svg", "image/svg+xml")):
        drawn = torchcoll.plot(run(*sizes), tmp_path / f"a.{suffix}")
        bundle = drawn._repr_mimebundle_()
        content = (tmp_path / f"a.{suffix}").read_bytes()
        held = bundle[kind].encode() if suffix == "svg" else base64.b64decode(bundle[kind])
        assert held == content
