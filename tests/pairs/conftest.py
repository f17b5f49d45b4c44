"""What tests with real ranks, and tests of printed tables, share."""

__all__ = [
    *("jobs", "launch", "less_patience", "no_torchrun_to_wait_for"),
    *("on_terminal", "shown"),
]
