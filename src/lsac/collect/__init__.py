"""The host side of a run: processes that act and simulate."""
