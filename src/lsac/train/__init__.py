"""The device side of a run, and the loop that joins both."""
