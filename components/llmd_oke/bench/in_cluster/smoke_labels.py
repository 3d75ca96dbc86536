"""How the objects of a smoke benchmark in a cluster are known."""

LABEL = "llmd-oke/smoke"
"""A label of Job, pod and result; its value is the name of the model's objects."""

JOB_ANNOTATION = "llmd-oke/job"
"""On a result: the Job that wrote it."""
