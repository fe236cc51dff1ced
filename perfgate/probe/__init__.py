"""What happens inside the server's processes: phase timers, and proof of what each rank ran with.

In: SGLang's own processes, and the lines that `inside` (standard library only) writes there. Out: the facts `phases`
and `proof`, and whether a tree still has what the probe times. The code under test can
write all of it: untrusted.
"""
