"""How fast KV cache goes from node to node: reads through NIXL between two pods, and what their ports counted.

Not run on hardware yet: it follows NIXL's published API, and tests hold it to a stand-in of that.
"""
