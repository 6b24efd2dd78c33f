"""Results as tables for the terminal, from their Datasets alone."""

from resprobe.tables.showing import show

__all__ = ["show"]
