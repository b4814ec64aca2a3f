"""Pictures and films of robots at work."""
