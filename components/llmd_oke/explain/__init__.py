"""Search for the keys of a stack file that a rendered value comes from, and for the effects of a key. Both are found by
planning and rendering the stack again with other values of its keys.

No field has a hand-kept list: a key is the origin of a field if the field changes with it.
"""
