"""``python -m gradcomp``: the gradcomp command."""

from gradcomp.cli import app

app(prog_name="gradcomp")
