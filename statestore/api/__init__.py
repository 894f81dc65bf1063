"""The parts of the public ``StateStore``: inspection, maintenance, and their shared context."""
