"""Records that cross the line between the front process and the engine core."""
