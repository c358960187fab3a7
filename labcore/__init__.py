"""The headless lab: runs, the truth they are held against, and their figures; no browser."""
