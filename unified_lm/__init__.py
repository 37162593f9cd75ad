"""Models that embed and generate: tensors in, tensors out, without configuration, trackers or benchmark libraries."""
