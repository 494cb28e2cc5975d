"""The trusted side of the sandbox: one process per worker that plans tests, runs them, and judges what comes back.

It is a process of its own because tests compute with values of a candidate: what they use of time and memory is limited
here, and what they change, such as the precision of `decimal`, stays here. It imports the standard library only.
"""
