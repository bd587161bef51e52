"""The error that a user caused. Nothing else belongs here, so that everything can import it."""


class UserError(ValueError):
    """Bad input: one line that names the argument and the remedy. The command line prints it and exits with code 2."""
