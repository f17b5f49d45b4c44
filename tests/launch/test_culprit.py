"""Six hosts on one bridge, one of them behind a worse link: is it named, and nobody else?"""

from __future__ import annotations

import contextlib

import pytest
from namespaces import COUNT, KINDS, SHORT, NoNamespaces, hosts, named, trouble
from ranks import Measured

pytestmark = pytest.mark.netns


@pytest.fixture(scope="module")
def network():
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(hosts(COUNT, SHORT.mbit))
        except NoNamespaces as error:
            pytest.skip(f"this machine gives {error}")
        yield made


@pytest.mark.parametrize("kind", KINDS)
def test_the_culprit_is_named(network, tmp_path, kind):
    for culprit in (1, 3, COUNT - 1):
        with trouble(network, kind, [culprit], SHORT.mbit):
            launched = {"environment": network.environment, "setup": network.enter}
            job = Measured(tmp_path / f"{culprit}", "pairs", SHORT.arguments, COUNT, **launched)
            job.job.wait()
        expected = [] if kind == "none" else [f"h{culprit}"]
        assert named(job.run) == expected, job.stdout() + job.stderr()
        assert job.run.end["exit_code"] == len(expected)
