"""The transitions that agents learn from, on the device."""
