"""The command ``statestore``: options, settings, output and errors, for all verbs.

Each verb is a module in ``verbs``. The code here parses arguments, calls the library, and prints
results as text or JSON. Any rule about a store belongs in the library, so that Python users get it
too.
"""
