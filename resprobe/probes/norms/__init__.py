"""What a network still gets right after a batch normalisation was replaced."""
