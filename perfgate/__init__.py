"""perfgate: did this change make serving slower, by how much, in which phase, and how sure are we?"""

__version__ = "0.1.0"
