"""What a data set says when its file cannot be used."""


class DataError(Exception):
    """A data file that is missing or not what it should be: which file, what was expected, the remedy."""

    for_user = True
