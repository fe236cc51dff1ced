"""Which commit a checkout was at when a log was written.

In: logs, and the reflogs of a checkout. Out: one table in the order of time, and a conclusion with its certainty.
Nothing is said to be sure that a clock, a copied file or a lost reflog could turn around.
"""
