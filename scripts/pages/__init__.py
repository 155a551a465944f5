"""The pages of the documentation as a site."""
