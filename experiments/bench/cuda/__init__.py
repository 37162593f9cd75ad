"""The bench on a GPU: random decoders in the shapes of real ones, so that no weights are needed.

Every part also runs on a CPU at a tiny shape, which is how it is tested; on a GPU it has not been run yet.
"""
