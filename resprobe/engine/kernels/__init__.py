"""Machine code for the convolutions that studies on a CPU spend their time in, made while they run."""
