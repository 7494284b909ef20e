"""Whether the simulator says what the real engine does: replays, comparisons and the command."""
