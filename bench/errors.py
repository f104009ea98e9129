"""User errors: one sentence, exit status 2."""

CANNOT_IMPORT = "cannot be imported"  # in the reason of a system that lacks a package


class UserError(ValueError):
    """A mistake in what was asked for; the message says what was wrong, with the value, and what to do."""
