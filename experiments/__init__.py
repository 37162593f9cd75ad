"""From a command line to a run directory, a record and a table. The only package that imports hydra or wandb."""
