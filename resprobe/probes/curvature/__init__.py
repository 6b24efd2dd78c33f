"""The Hessian of the loss: eigenvalues, trace, density, blocks."""
