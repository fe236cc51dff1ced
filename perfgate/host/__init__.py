"""The box: GPUs, NCCL, system, lock, canary, and how strangers' code is confined on it."""
