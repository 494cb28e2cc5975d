"""The untrusted side of the sandbox: what runs in the zygote and in the processes it forks.

Nothing in this package may hold an expected value, and nothing that it sends is believed: the trusted side
reads its bytes with `reader` and judges them there. It imports the standard library only, without site-packages.
"""
