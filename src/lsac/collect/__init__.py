"""The host side of a run: processes that choose actions and step the simulators."""
