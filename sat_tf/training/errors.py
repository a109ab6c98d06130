"""What stops a run for a reason that its user can mend."""


class RunError(ValueError):
    """A run cannot start or go on; the message says what was received, expected, and the fix."""
