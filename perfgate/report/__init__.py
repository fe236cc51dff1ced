"""What people read: the comment, the page, the terminal. Pure functions of a result (the page also of facts)."""
