"""How many altered models meet many images: batches, scoring, shared prefixes, threads, devices, quick convolutions."""
