"""perfgate on GitHub: who asks for what, may they, and what the pull request is told.

`respond` (hosted, no PR code) → `box` (the runner, no token) → `publish` (hosted, trusts nothing it is handed).
Everything that strangers wrote is parsed by a strict grammar or validated by a schema before anything else sees it.
"""
