"""Where configuration is looked for."""

from pathlib import Path

CONFIG_PATH = ".github/perfgate.yml"  # in the base branch
BOX_PATH = Path("/etc/perfgate/box.yml")  # on the box
