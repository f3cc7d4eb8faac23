"""LOAD, MATRIX, FUSE and STORE: the engines that execute unit commands from their own queues."""
