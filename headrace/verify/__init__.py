"""Whether an answer depends on anything but its request: a battery of schedules, compared."""
