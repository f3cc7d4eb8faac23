"""Search methods, and the search driver."""
