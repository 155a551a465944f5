"""Prediction of a step's time under each spec and exchange pattern, for ``gradcomp advise``."""
