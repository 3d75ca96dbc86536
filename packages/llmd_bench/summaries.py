"""Base class of JSON summaries, whose fields are read from the attributes of a result."""

from pydantic import BaseModel, ConfigDict


class SummarySection(BaseModel):
    """Section of a JSON summary, each field of which is read from the attribute of the same name, or of its alias, of a
    record.
    """

    model_config = ConfigDict(from_attributes=True, frozen=True)
