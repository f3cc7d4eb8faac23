"""The request server: requests through a live machine under versions of a network."""
