"""Pictures and pages: graphs of every stage of the compiler, charts, the profile page."""
