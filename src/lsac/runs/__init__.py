"""What a run is, and how it is kept on disk."""
