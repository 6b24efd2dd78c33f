"""The gradient split by the number of residual branches that its paths take."""
