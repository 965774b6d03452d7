"""The commands: signatures and help texts; each imports what does its work when it is called."""
