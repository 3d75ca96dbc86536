"""Search of a stack's logs, events, object states and metrics for the signatures of known faults."""
