"""The units LOAD, MATRIX, FUSE and STORE, which execute commands from their queues."""
