"""Fixtures for tests with real ranks."""

from rank_fixtures import jobs, launch, less_patience, no_torchrun_to_wait_for

__all__ = ["jobs", "launch", "less_patience", "no_torchrun_to_wait_for"]
