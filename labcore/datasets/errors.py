"""What a data set says when its file cannot be used."""


class DataError(Exception):
    """A data file that is missing or damaged: which one, what was expected, what to do."""

    for_user = True
