"""Summaries of results as plain JSON has them: sections that declare what they take from the records of a result."""

from pydantic import BaseModel, ConfigDict


class SummarySection(BaseModel):
    """Part of a summary: each field is the attribute of the same name, or of its alias, of the record it is made of."""

    model_config = ConfigDict(from_attributes=True, frozen=True)
