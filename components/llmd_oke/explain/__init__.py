"""Origins of rendered values, and effects of keys of the stack file, found by planning and rendering with other values.

No field has a hand-kept list: a key is the origin of a field if the field changes with it.
"""
