"""Documentation of installed Python packages as training and evaluation data."""
