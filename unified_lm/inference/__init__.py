"""Vectors, text and likelihoods from a trained model."""
