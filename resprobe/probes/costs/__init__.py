"""What a network costs: parameters, multiply-adds, memory, seconds per pass."""
