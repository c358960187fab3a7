"""Lets Ctrl-C through to the tests: a shell that runs them in the background shuts it out."""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Whoever they start would inherit that, and tests send SIGINT to those.
    signal.signal(signal.SIGINT, signal.default_int_handler)
