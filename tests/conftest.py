"""What every test starts from: none of the variables that the code reads; and shared fixtures."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

# Nothing that is imported and collected is garbage: a fifth of the time went into looking for it.
# Afterwards it is left out of what is looked at.
gc.disable()

import pytest  # noqa: E402
from forked_programs import forked_python  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402
from rank_fixtures import jobs, launch, less_patience, no_torchrun_to_wait_for  # noqa: E402
from ranks import busy  # noqa: E402
from show_fixtures import fixed_columns, on_terminal, shown  # noqa: E402

__all__ = [  # fixtures of all tests, beside those below
    "fixed_columns",
    "jobs",
    "launch",
    "less_patience",
    "no_torchrun_to_wait_for",
    "on_terminal",
    "shown",
]

# No deadline, and no complaint about slow examples: a busy machine is no failure. The same examples
# each time: a build says something of the code, not of its luck.
settings.register_profile(
    "torchcoll",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("torchcoll")

# In the background of a script (tests/run.sh) it is ignored, also by all that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
NAMES += ("GROUP_RANK", "NO_COLOR", "COLUMNS", "PBS_JOBID", "LSB_JOBID")
PREFIXES = (
    "TORCHELASTIC_",
    "SLURM_",
    "OMPI_",
    "PMI_",
    "PMIX_",
    "PALS_",
    "FLUX_",
    "JSM_",
    "MPI_LOCAL",
    "TORCHCOLL_",
)


def pytest_collection_finish() -> None:
    """Look for garbage seldom: of the syntax trees of all files, most of the time went into it."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 10)
    gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test that hangs is ended; the limit is of an idle machine, and grows with the load."""
    if not item.get_closest_marker("timeout"):
        item.add_marker(pytest.mark.timeout(120 * busy()))
    return (yield)


# They look at output as a user gets it.
AS_PRINTED = ("test_readme.py", "test_examples.py", "test_layout.py")


@pytest.fixture(autouse=True)
def clean_environment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name in NAMES or name.startswith(PREFIXES):
            monkeypatch.delenv(name)
    if request.path.name not in AS_PRINTED:
        # Most tests are about what is printed, not about where it is wrapped; and they find the
        # answer below every table, not only below long ones.
        monkeypatch.setattr("torchcoll.report.destination.PIPE_COLUMNS", 1000)
        monkeypatch.setattr("torchcoll.report.grid._SCREEN", -1)


@pytest.fixture
def in_tmp_path(tmp_path, monkeypatch):
    """The current folder is an empty one; by request, for most tests do not write."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An interpreter that has imported torch and torchcoll, for processes that a test starts."""
    path = tmp_path_factory.mktemp("forked") / "python"
    with forked_python(path):
        yield str(path)
