"""Base class of JSON summaries, whose fields are read from the attributes of a result."""

from pydantic import BaseModel, ConfigDict


class SummarySection(BaseModel):
    """Section of a JSON summary: each field is read from the attribute, of the same name or of the field's alias, of
    the object that the summary is made from.
    """

    model_config = ConfigDict(from_attributes=True, frozen=True)
