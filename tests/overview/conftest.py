"""What tests of printed tables share."""

from show_fixtures import on_terminal, shown

__all__ = ["on_terminal", "shown"]
