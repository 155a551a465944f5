"""Statistics and profiles of a rank."""
