"""Log lines of the same form as SGLang's."""

import sys
import time


def line(text):
    sys.stderr.write(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {text}\n")
    sys.stderr.flush()
