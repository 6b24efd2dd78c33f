"""What smoothness, curvature and surfaces share: the loss along lines, step rules, directions, the Hessian."""
