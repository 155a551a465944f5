"""The ``gradcomp`` command: `app` assembles it, and each other module holds a command or two."""
