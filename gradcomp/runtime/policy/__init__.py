"""The policy ``auto``: measurements, predictions, and decisions about groups of tensors."""
