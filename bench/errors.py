"""User errors: one sentence, exit status 2."""


class UserError(ValueError):
    """A mistake in what was asked for; the message says what was wrong, with the value, and what to do."""
