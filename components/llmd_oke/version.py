"""Version of the distribution: of the wheel, and of the component package that Pulumi runs from a checkout."""

__version__ = "0.1.0"
