"""Learning from decisions: where other names stand, and what to ask next."""
