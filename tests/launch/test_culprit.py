"""Six hosts on one bridge, a worse link or a worse path: is it named, and nobody else?

Once each. How often it is in many runs: results/benchmarks/culprit-2026-11-22.txt.
"""

from __future__ import annotations

import contextlib

import pytest
from namespaces import COUNT, PATH, SHORT, NoNamespaces, hosts, named, trouble
from ranks import Measured

pytestmark = pytest.mark.netns


@pytest.fixture(scope="module")
def network(request):
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(hosts(COUNT, request.param))
        except NoNamespaces as error:
            pytest.skip(f"this machine gives {error}")
        yield made


@pytest.mark.parametrize(
    ("network", "kind", "culprits"),
    [
        (SHORT, "slow", (COUNT - 1,)),
        (SHORT, "none", ()),
        (PATH, "path", (0, 4)),
    ],
    indirect=["network"],
)
def test_the_culprit_is_named(network, tmp_path, kind, culprits):
    with trouble(network, kind, culprits):
        launched = {"environment": network.environment, "setup": network.enter}
        arguments = network.search.arguments
        job = Measured(tmp_path / "run", "pairs", arguments, COUNT, **launched)
        job.job.wait()
    expected = ["-".join(f"h{index}" for index in culprits)] if culprits else []
    assert named(job.run) == expected, job.stdout() + job.stderr()
    assert job.run.end["exit_code"] == len(expected)
