"""A model with its optimizer, by framework."""
