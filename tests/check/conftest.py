"""What tests with real ranks share."""

from rank_fixtures import jobs, launch, less_patience, no_torchrun_to_wait_for

__all__ = ["jobs", "launch", "less_patience", "no_torchrun_to_wait_for"]
