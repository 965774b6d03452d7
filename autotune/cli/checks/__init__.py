"""The doctor's checks; each yields one or more findings."""
