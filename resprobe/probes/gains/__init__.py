"""How much each unit amplifies the gradient before training, measured against what random Jacobians predict."""
