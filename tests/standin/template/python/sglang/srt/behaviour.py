"""How this commit of the stand-in behaves. `make_repository` writes it anew in every commit."""

BEHAVIOUR = {}
PROMPT_KINDS = {}
