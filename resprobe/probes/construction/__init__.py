"""Is the deeper network built from a shallower one the same function, and does it train on?"""
