"""A paper table's whole path on a small machine: its recipes, suites and columns over made-up data and tiny decoders."""
