"""The structure of a model, read from its computation graph: residual units, plain layers, and how to delete them."""
