"""What a run survives, and what it never leaks: `make test-reliability`."""
