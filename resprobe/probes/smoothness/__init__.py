"""Loss and gradient along the gradient, by mode of batch normalisation."""
