"""What ``gradcomp bench --all`` compares gradcomp with; used by nothing else."""
