"""Statistics, curves and tables of runs, read from their folders."""
