"""Training of the networks in `resprobe.networks`, with a log as a Dataset; resumable to the bit."""
