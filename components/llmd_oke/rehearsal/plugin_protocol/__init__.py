"""What the stand-in plug-ins share: the engine's protocol, trees of values, and a server that answers calls."""
