"""Norms of gradients by layer and by unit."""
