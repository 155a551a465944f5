"""``python -m gradcomp``: the gradcomp command."""

from gradcomp.cli.app import app

app(prog_name="gradcomp")
