"""The headless lab: runs, the truth they are held against, and their figures; no browser."""

import os

# Read when torch is loaded, so set before any module of the lab loads it. Threads that wait for one
# another sleep instead of spinning: where a core is busy with something else, such as drawing the
# page, spinning makes a step several times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
