"""Pictures and films of recorded episodes."""
