"""What the result of each analysis holds: tables of names, dims, kinds and units."""
