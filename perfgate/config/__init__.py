"""What is configured: perfgate.yml of the base branch, the box's own file, and what holds when one lies on the other.

In: the text of those files. Out: `Resolved`, and every mistake with its file, its line and what to write instead.
"""
