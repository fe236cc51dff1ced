"""A process that only has to be there: SGLang's detokenizer leaves the server's session as its scheduler does."""

import contextlib
import os
from pathlib import Path

from sglang.srt import scripted


def run_detokenizer_process(inbox):
    Path("/proc/self/comm").write_text("sglang::detoken")
    if scripted.get("setsid", True):
        os.setsid()
    with contextlib.suppress(EOFError):
        inbox.recv()
