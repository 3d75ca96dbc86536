"""Origins of rendered values, and effects of keys of the stack file. Both are found by planning and rendering the stack
again with other values of its keys.

No field has a hand-kept list: a key is the origin of a field if the field changes with it.
"""
