"""Fixtures for tests of printed tables."""

from show_fixtures import on_terminal, shown

__all__ = ["on_terminal", "shown"]
