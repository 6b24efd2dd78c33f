"""Loss and error around the trained weights, along lines and in planes."""
