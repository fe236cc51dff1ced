"""The box: what it is, whether it rests, how strangers' code is confined on it, and what happens on it meanwhile.

In: box file, devices, NVML, /proc, NCCL's log files. Out: a doctor's fact, commands that run confined, telemetry and
canary readings. Nothing here knows which side is measured, or judges a number.
"""
