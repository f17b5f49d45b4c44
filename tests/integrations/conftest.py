"""Fixtures for tests with real ranks and tests of printed tables."""

from rank_fixtures import jobs, launch, less_patience, no_torchrun_to_wait_for
from show_fixtures import on_terminal, shown

__all__ = [
    "jobs",
    "launch",
    "less_patience",
    "no_torchrun_to_wait_for",
    "on_terminal",
    "shown",
]
