"""Analyses, a folder each: the numerics, what the result holds, its table and its figure.

The module with the name of the folder holds the function that `resprobe` exports: it takes a model and batches and
returns an xarray.Dataset. `landscape` is what smoothness, curvature and surfaces share.
"""
