"""Request server: runs requests on a live machine under successive versions of a network."""
