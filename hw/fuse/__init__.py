"""Parts of the FUSE unit, one stage a file."""
