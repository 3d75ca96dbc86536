"""Policies of an organisation for what stacks declare: the same rules for `check`, pipelines and Pulumi's engine."""
