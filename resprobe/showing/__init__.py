"""What a person sees of a result: its table in a terminal and its figure, from its Dataset alone."""
