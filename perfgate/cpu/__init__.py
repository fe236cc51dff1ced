"""The cpu profile: real SGLang with EAGLE-3 on a machine without a GPU, from package registries only."""
