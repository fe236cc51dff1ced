"""The commands that do more than call one function: one short file each.

In: what a person typed. Out: what they read, and an exit code.
"""
