"""Launch the inference server."""

import sys
import warnings

from sglang.srt import scripted
from sglang.srt.server_args import parse

if __name__ == "__main__":
    warnings.warn(
        "'python -m sglang.launch_server' is still supported, but 'sglang serve' is the recommended entrypoint.",
        UserWarning,
        stacklevel=1,
    )
    if scripted.get("crash") == "import":
        raise ImportError("cannot import name 'scripted_failure' from 'sglang.srt'")
    from sglang.srt.entrypoints.http_server import launch_server

    launch_server(parse(sys.argv[1:]))
