"""What speaks for a residual network being an ensemble of short paths, from results of other analyses."""
