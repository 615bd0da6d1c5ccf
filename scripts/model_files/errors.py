"""What goes wrong with models."""


class Failed(Exception):
    """An error the user can act on; shown as one line."""
