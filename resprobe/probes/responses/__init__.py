"""How strong the signal is that each convolution gives."""
