"""A GitHub of our own: stateful, over loopback HTTP, held to GitHub's OpenAPI description at every call."""

from tests.e2e.hub.server import Fault, Hub
from tests.e2e.hub.world import BOT, Repository, Token, User, World

__all__ = ["BOT", "Fault", "Hub", "Repository", "Token", "User", "World"]
