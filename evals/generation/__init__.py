"""Suites that score generation and likelihoods through lm-eval."""
