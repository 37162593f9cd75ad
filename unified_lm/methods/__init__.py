"""Training methods, one file each; `base` says what a method is."""
