"""What other people's exceptions say, as text: an exception's own text can fail to be made.

Whoever turns an error that is not ours into text does it here.
"""

from __future__ import annotations


class Exited(Exception):
    """Other people's code wanted to end the process (`sys.exit()`) or left by something that is no
    `Exception`. It ends what it was called for, and nothing else; `error` is what it raised."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(said_by(error))
        self.error = error


def said_by(thing: object) -> str:
    """What it says, as a plain string. Never raises."""
    try:
        return "".join([str(thing)])
    except BaseException as error:  # its `__str__` is other people's code
        return f"(its text cannot be made: {type(error).__name__})"


def name_of(error: BaseException) -> str:
    """The name of its type; of an `Exited`, what was raised."""
    return type(error.error if isinstance(error, Exited) else error).__name__
