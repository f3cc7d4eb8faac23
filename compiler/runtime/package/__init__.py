"""The `.mla` file format: writer, reader and field checks."""
