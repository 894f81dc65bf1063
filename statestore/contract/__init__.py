"""Judge whether a new version of a job reads the state of the old one, before it is deployed.

A *contract* (:mod:`.model`) describes a job's state as its engine compares it at a restart. The
modules ``…_side`` read the contract of what exists: a store, a checkpoint location, a savepoint, a
planned job. The modules ``…_rules`` compare two contracts of one engine. They are pure, and cite
the class of the engine that makes the same decision. :mod:`.lock` keeps a contract in a file.

What computes with state belongs in the packages below. This package only describes and compares.
"""
