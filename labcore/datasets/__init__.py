"""The data sets: embedded files, verified and parsed."""
