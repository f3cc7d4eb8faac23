"""The `.mla` file format: writer, and reader with field checks."""
