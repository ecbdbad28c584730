"""Random programs: what they are, how they are drawn and run, and what must hold of them."""
