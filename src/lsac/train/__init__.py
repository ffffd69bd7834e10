"""The device side of a run, and the loop that connects it with the host side."""
