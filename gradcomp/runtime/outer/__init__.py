"""Training with local steps: averages of pseudo-gradients, and outer steps on them."""
