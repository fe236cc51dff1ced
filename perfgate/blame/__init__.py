"""Which commit, which package, and what old logs are worth.

In: a history, and the facts of runs or the logs of an earlier day. Out: a name, a range or an order, each with how sure
it is. What has to be measured goes through `run`; nothing here measures by itself.
"""
