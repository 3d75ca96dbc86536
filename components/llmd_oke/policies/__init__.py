"""Policies of an organisation on the resources that stacks declare, enforced by `check`, pipelines and
Pulumi's engine.
"""
