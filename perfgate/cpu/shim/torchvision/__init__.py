"""Stand-in for torchvision, which only SGLang's image and video models use. Its registry wheel needs CUDA."""

from __future__ import annotations

from placeholder import placeholder as __getattr__  # noqa: F401  every name exists
from placeholder import pretend_submodules

__version__ = "0+perfgate"

pretend_submodules(__name__)
