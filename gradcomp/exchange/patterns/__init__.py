"""Exchange patterns: rounds that average the payloads of any codec."""
