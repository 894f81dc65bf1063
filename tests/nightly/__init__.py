"""All that ``make test`` leaves out, in parts that are run one after another: ``make nightly``."""
