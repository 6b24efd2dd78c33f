"""Machine code for the convolutions that studies on a CPU spend their time in, made while they run.

Everything works without it, with the same counts: see `availability`. Where llvmlite is missing, only
`availability` and `tiling` can be imported.
"""
