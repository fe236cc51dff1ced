"""Git: commits, merge bases, worktrees, and what a diff means for a measurement."""
