"""Stand-in for torchvision, which only SGLang's image and video models use. Its registry wheel needs CUDA."""

from __future__ import annotations

from placeholder import placeholder, pretend_submodules  # type: ignore[import-not-found]

__version__ = "0+perfgate"
__getattr__ = placeholder  # every name that is not here

pretend_submodules(__name__)
