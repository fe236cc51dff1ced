"""One run, from request to result: the only room that starts servers.

In: a `GateRequest` (two commits, a configuration, a box). Out: a folder with facts.jsonl, logs, result.json, comment
and page; the same folder goes on after an interruption.
"""
