"""Training with outer steps: averages of pseudo-gradients, and outer steps on them."""
