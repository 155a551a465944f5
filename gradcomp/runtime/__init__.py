"""One rank at work: its state, its policy, its statistics, and the collection of gradients."""
