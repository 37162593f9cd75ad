"""A paper table walked through on a small machine: its recipes, suites and columns, made-up data, tiny decoders."""
