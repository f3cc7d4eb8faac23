"""The project's own networks: what trains, quantizes and stores them, and the results."""
