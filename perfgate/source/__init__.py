"""Git, read only.

In: a checkout and the names of two commits. Out: full commits, their merge base, their files as folders, and what
their diff means for a measurement: what has to be built, and whether there is anything to measure.
"""
