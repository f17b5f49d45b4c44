"""Six hosts on one bridge, a worse link or a worse path: is it named, and nobody else?"""

from __future__ import annotations

import contextlib

import pytest
from namespaces import COUNT, SHORT, NoNamespaces, hosts, named, trouble
from ranks import Measured

pytestmark = pytest.mark.netns


@pytest.fixture(scope="module")
def network():
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(hosts(COUNT, SHORT))
        except NoNamespaces as error:
            pytest.skip(f"this machine gives {error}")
        yield made


@pytest.mark.parametrize(
    ("kind", "every"),
    [
        ("slow", [(1,), (COUNT - 1,)]),
        ("busy", [(1,), (3,)]),
        ("path50", [(0, 4), (2, 3)]),
        ("none", [(), (), ()]),
    ],
)
def test_the_culprit_is_named(network, tmp_path, kind, every):
    for number, culprits in enumerate(every):
        with trouble(network, kind, culprits):
            launched = {"environment": network.environment, "setup": network.enter}
            job = Measured(tmp_path / f"{number}", "pairs", SHORT.arguments, COUNT, **launched)
            job.job.wait()
        expected = ["-".join(f"h{index}" for index in culprits)] if culprits else []
        assert named(job.run) == expected, job.stdout() + job.stderr()
        assert job.run.end["exit_code"] == len(expected)
