"""The `gradcomp` command."""
