"""One page to look at: what runs measured, against each other and against the paper, in a file or live."""
