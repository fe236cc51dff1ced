"""GitHub: events, commands, access, publishing. Everything that comes from there is a stranger's."""
