"""Runs: the folder of a run, the one training loop, compiled programs, checkpoints, logs."""
