"""The errors that a user can do something about. Nothing else belongs here, so that everything can import it."""


class UserError(ValueError):
    """Bad input: one line that names the argument and the remedy. The command line prints it and exits with code 2."""


class NotFiniteError(UserError):
    """A picture or an answer came out of numbers that are none, so that it means nothing.

    Attributes:
        row: of the batch, from 0.
    """

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row
