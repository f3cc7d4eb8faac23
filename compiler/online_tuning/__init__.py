"""Online tuning: a live machine serves requests while its programs are tuned and replaced."""
