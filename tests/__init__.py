"""perfgate's tests."""
