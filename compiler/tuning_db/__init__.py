"""The tuning database: trials, best programs, hardware profiles, executions."""
