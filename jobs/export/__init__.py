"""Records out of an archive, or out of a generation of a store, into tables that others read."""
