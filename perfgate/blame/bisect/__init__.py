"""Which commit of many made serving slower: a noisy binary search, and a confirmation against the parent.

In: a line of commits, and pairs of launches that `run` measures. Out: names with one stated error, or the smallest
range that the evidence allows. The search is a pure function of what was measured so far: an interrupted
one is replayed.
"""
