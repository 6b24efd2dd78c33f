"""The command line: a module a command; each one reads its options, loads, calls, saves and shows.

Modules that bring PyTorch are imported inside the functions, so that `--help` answers at once.
"""
