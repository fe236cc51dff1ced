"""Where a rank first meets the others."""


def initialize_model_parallel(*args, **kwargs):
    return args
