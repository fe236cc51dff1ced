"""perfgate's own folders on the box: things made once and shared, kept within a limit, and removed whole.

In: a folder to fill, or one that strangers' code has filled. Out: entries that are complete or not there at all,
strangers' files opened, hashed and copied without following a link, and folders that are gone, whatever lay in them.
"""
