"""Batch normalisation: its statistics, its modes, and how the weights absorb it."""
