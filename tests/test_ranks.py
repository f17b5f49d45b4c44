"""What the tests themselves stand on: how long they wait."""

import os
import time

import pytest
from ranks import Job, busy


def of_load(monkeypatch, load):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})


@pytest.mark.parametrize(("load", "factor"), [(0.0, 1), (2.0, 1), (3.0, 1.5), (40.0, 20)])
def test_a_core_shared_by_twenty_is_twenty_times_as_slow(monkeypatch, load, factor):
    of_load(monkeypatch, load)
    assert busy() == factor


def test_a_job_on_a_busy_machine_is_given_more_time(monkeypatch, tmp_path):
    of_load(monkeypatch, 2000.0)
    assert Job(tmp_path / "busy", lambda: time.sleep(0.3), 1).codes(0.1) == [0]


def test_a_job_that_hangs_is_ended(monkeypatch, tmp_path):
    of_load(monkeypatch, 0.0)
    job = Job(tmp_path / "idle", lambda: time.sleep(100), 1)
    with pytest.raises(AssertionError, match=r"ranks \[0\] still run after 0.1 s"):
        job.wait(0.1)
    assert job.running() == []


def test_the_limit_of_a_test_grows_with_the_load(request):
    (limit,) = request.node.get_closest_marker("timeout").args
    assert limit >= 120
