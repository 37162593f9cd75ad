"""Training: the global-batch objective, ranks, the loop, optimizers and checkpoints."""
