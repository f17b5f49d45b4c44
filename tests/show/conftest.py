"""What tests of printed tables share."""

from show_fixtures import fixed_columns, on_terminal, shown

__all__ = ["fixed_columns", "on_terminal", "shown"]
